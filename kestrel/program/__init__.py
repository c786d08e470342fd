"""The recorded forward pass: values, commands, the recorder and the memory plan."""
