"""The web view: pages about runs, pools and agent servers, and the server that has their data."""
