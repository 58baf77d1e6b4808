"""The client with asyncio."""
