"""Servers of the Model Context Protocol as tools. Its library is loaded when the first connection is opened."""

from __future__ import annotations

from perdure.providers.mcp.servers import MCPStdioTool, MCPStreamableHTTPTool
from perdure.providers.mcp.tool import MCPSpecificApproval, MCPTool

__all__ = ["MCPSpecificApproval", "MCPStdioTool", "MCPStreamableHTTPTool", "MCPTool"]
