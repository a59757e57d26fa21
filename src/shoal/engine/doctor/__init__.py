"""What this host can hold, found out by attacking it: live escapes, and one breach of each limit."""
