"""The proxy for trouble on demand lives in the testing kit."""

from syncline.testing import Cut, Message, Proxy, Way

__all__ = ["Cut", "Message", "Proxy", "Way"]
