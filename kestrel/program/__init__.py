"""The recorded forward pass: values, commands, the recorder that writes them, and the memory plan."""
