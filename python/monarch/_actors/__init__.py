"""What an actor class is: its base, its declared endpoints, and the table of its methods."""
