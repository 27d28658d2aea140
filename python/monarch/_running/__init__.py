"""What runs actors in a process: their construction, threads and event loops, and their end."""
