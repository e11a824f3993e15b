"""Helpers of the library's own modules."""
