"""Tests of crashes, simulated in this process and in real processes."""
