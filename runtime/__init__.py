"""What runs beside user code on a host. It imports nothing of the other packages."""
