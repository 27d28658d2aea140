"""Values: geometry, arrays of values, identities. They know nothing of actors."""
