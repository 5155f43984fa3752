"""Everything that touches the world: clients, the embedded engine, readers and the one writer."""
