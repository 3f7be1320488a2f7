"""Agent server processes that belong to this program: a pool of child servers, and the fork server that starts them."""
