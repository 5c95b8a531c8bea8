"""What can go wrong with payloads, by who has to act."""

from holdfast.codecs.blobs import BadStoreError, MissingBlobError, StoreRefusedError, StoreUnavailableError
from holdfast.codecs.codec import NoStoreError, TooLargeError
from holdfast.codecs.keys import BadKeyError, KeysUnavailableError, UnknownKeyError
from holdfast.codecs.sealing import DamagedError
from holdfast.codecs.settings import BadSettingError

BAD_SETTINGS = (BadKeyError, BadStoreError, BadSettingError)
"""A process that has them cannot start."""
WORTH_WAITING = (StoreUnavailableError, StoreRefusedError, NoStoreError, UnknownKeyError, KeysUnavailableError)
"""Of the surroundings, not of the data: another time, or on another worker, it works."""
DAMAGED = (DamagedError, MissingBlobError)
"""The data is gone, or is not what was written."""
REFUSED = (TooLargeError,)
