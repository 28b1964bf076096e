"""MCP servers as tools. The `mcp` library is loaded with the first connection."""

from __future__ import annotations

from perdure.providers.mcp.server import MCPSpecificApproval, MCPStdioTool, MCPStreamableHTTPTool, MCPTool

__all__ = ["MCPSpecificApproval", "MCPStdioTool", "MCPStreamableHTTPTool", "MCPTool"]
