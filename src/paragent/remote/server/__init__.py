"""The server's side: agents, their mailboxes, the threads and the loop that carry calls out, and who asked for them."""
