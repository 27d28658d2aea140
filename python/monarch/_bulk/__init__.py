"""Buffers that other processes read and write."""
