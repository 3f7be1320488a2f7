"""Agent server: sessions of clients, their agents, and the execution of calls."""
