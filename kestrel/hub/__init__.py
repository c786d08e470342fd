"""Where models come from: a folder, or a model of the Hugging Face hub by its id.

What lies in the hub's local cache is found by a small reader of its layout, without network and
without huggingface_hub, which is imported only when something has to be fetched.
"""

from kestrel.hub.cache import Snapshot
from kestrel.hub.locate import is_cached, model_folder
from kestrel.hub.names import HubId

__all__ = ["HubId", "Snapshot", "is_cached", "model_folder"]
