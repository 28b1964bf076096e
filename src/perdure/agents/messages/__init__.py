"""Messages, contents and responses: the data that agents and models exchange."""
