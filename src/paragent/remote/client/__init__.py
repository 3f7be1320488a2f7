"""Client side of remote agents: lazy results, streams, and the links to agent servers."""
