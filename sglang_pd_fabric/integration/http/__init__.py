"""What we add to SGLang's HTTP server: errors that reach the client, and the other side, as what they are."""
