"""Objects to MessagePack, refusing what could not be read back.

ormsgpack forgets the errors of the function it calls for an object; a Writer keeps the first.
"""

from typing import Any, Final, cast

import ormsgpack
from langchain_core.messages import BaseMessage

from holdfast.errors import HoldfastError, UnsupportedValue
from holdfast.integrations.langgraph.values import forms, messages
from holdfast.integrations.langgraph.values.allowed import Allowed

_MAX_NESTED: Final = 100
_OPTIONS: Final = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_UNNAMED: Final = (forms.NUMPY_ARRAY, forms.SNAPSHOT)


class MsgpackWriter:
    """One value on its way to bytes. `doubtful`: it holds objects whose own code makes them."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._error: HoldfastError | None = None
        self._nested = 0
        self.doubtful = False

    def pack(self, value: object) -> bytes:
        """The MessagePack of `value`; raises TypeNotAllowed or UnsupportedValue."""
        try:
            return ormsgpack.packb(value, default=self._extension, option=_OPTIONS)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._error or UnsupportedValue(
                f"the value cannot be stored: {error}. Nothing was written"
            ) from error

    def pack_shell(self, message: BaseMessage) -> bytes:
        """The MessagePack of a message with nothing for its content."""
        module, name, fields, method = forms.PYDANTIC_2_FORM.payload(message)
        fields["content"] = ""
        payload = self.pack((module, name, fields, method))
        self.doubtful = self.doubtful or messages.checked(type(message), fields) is None
        return self.pack(ormsgpack.Ext(forms.PYDANTIC_2, payload))

    def _extension(self, value: Any) -> object:
        try:
            return self._formed(value)
        except HoldfastError as error:
            self._error = self._error or error
            raise
        except Exception as error:
            self._error = self._error or UnsupportedValue(
                f"a {type(value).__qualname__} cannot be stored: {error}. Nothing was written"
            )
            raise

    def _formed(self, value: Any) -> object:
        # As LangGraph does: what went wrong is stored to be shown, not to be raised again.
        kind = cast("type[Any]", type(value))
        if issubclass(kind, BaseException):
            return repr(value)
        form = forms.form_of(kind)
        if form is None:
            raise UnsupportedValue(
                f"a {kind.__module__}.{kind.__qualname__} cannot be stored: state is data. "
                "Store what it holds, or keep it out of the state"
            )
        if form.code not in _UNNAMED and form is not forms.PATTERN_FORM:
            self._allowed.require(kind)
        self._nested += 1
        if self._nested > _MAX_NESTED:
            raise UnsupportedValue(f"objects nested deeper than {_MAX_NESTED}; is it a cycle?")
        payload = form.payload(value)
        packed = self.pack(payload)
        self._nested -= 1
        if form.doubtful and not self.doubtful:
            self.doubtful = not (
                kind in messages.MESSAGES and messages.checked(kind, payload[2]) is not None
            )
        return ormsgpack.Ext(form.code, packed)
