"""Model providers behind `ports.LlmProvider`. Only `transport` touches the network."""
