"""A stand-in for the package ``tool_sandbox``: its faces and manners, and scenarios of a lamp and a phone book."""
