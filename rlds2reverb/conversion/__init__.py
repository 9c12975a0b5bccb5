"""Any source into any destination."""
