"""What all pages and endpoints of a server share: the project, open models, jobs and templates."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from dualmoco.core import VERSION
from dualmoco.core.errors import ConfigError, DualmocoError
from dualmoco.models.embedded import DEFAULT_MODEL, EMBEDDED, all_languages, default_model, is_installed
from dualmoco.models.load import GivenText, default_language
from dualmoco.models.model import UNDETERMINED, Model
from dualmoco.server.coalescing import Coalescer
from dualmoco.server.jobs import Jobs
from dualmoco.server.project import NotFoundError, Project
from dualmoco.server.request_metrics import RequestCounts

if TYPE_CHECKING:
    from dualmoco.search.index import Index

TEMPLATES = Environment(
    loader=PackageLoader("dualmoco.server"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
STATIC_FILES = Path(__file__).with_name("static")


class Studio:
    """The state of a server.

    Args:
        project: Project to serve.
        model: Name of the default model; None to choose it by the languages of the texts.
        jobs: Jobs of the project.
    """

    def __init__(self, project: Project, model: str | None, jobs: Jobs) -> None:
        self.project, self.own_model, self.jobs = project, model, jobs
        self.coalescer, self.counts = Coalescer(), RequestCounts()
        self._models: dict[str, Model] = {}
        self._indexes: dict[str, Index] = {}
        self._opening = threading.Lock()

    def model(self, name: str | None = None) -> Model:
        """A model, opened at the first call; its `encode` may be called from several threads."""
        name = name or self.default_model
        if name in self._models:
            return self._models[name]
        with self._opening:
            if name not in self._models:
                from dualmoco.models.load import open_model

                model = open_model(name)
                for lang in model.languages or []:
                    model.backend(lang)  # opened here, because opening is not thread-safe
                self._models[name] = model
            return self._models[name]

    @property
    def default_model(self) -> str:
        """The default model of requests whose vectors must be in one space."""
        return self.own_model or DEFAULT_MODEL

    @property
    def model_words(self) -> list[str]:
        """Command-line arguments that select the server's model; empty if it is chosen by the languages."""
        return ["--model", self.own_model] if self.own_model else []

    @property
    def languages(self) -> list[str]:
        """The languages that texts of the project may have."""
        return self.model().languages or [] if self.own_model else all_languages()

    def model_for(self, name: str | None, *texts: GivenText) -> Model:
        """The model for some texts: the named model, or the server's model, or the default model of their languages.

        Raises:
            ConfigError: A text has no letters to recognise its language by.
            DataError: A text is too short to recognise its language, or in several scripts.
            ModelError: No model has all languages.
        """
        if name or self.own_model:
            return self.named_model(name)[0]
        return self.model(default_model([text.lang or default_language(text) for text in texts]))

    def model_names(self) -> list[str]:
        """The models that a request may name."""
        return list(dict.fromkeys([self.default_model, *filter(is_installed, EMBEDDED)]))

    def model_name(self, name: str | None) -> str:
        """Checks the name of a model; None is the server's model. NotFoundError for other models."""
        if name in (None, "", *self.model_names()):
            return name or self.default_model
        raise NotFoundError(f"model {name!r:.200}; expected one of {', '.join(self.model_names())}")

    def is_open(self, name: str) -> bool:
        """Whether `named_model` finds a model at once."""
        return name in self._models or name.rpartition(":")[0] in self._models

    def named_model(self, name: str | None = None, lang: str | None = None) -> tuple[Model, str | None]:
        """The model and the language of a request, given as `en-zh`, or as `en-zh:zh` with the language.

        Raises:
            ConfigError: The request has two different languages.
            ModelError: The model lacks the language.
            NotFoundError: The name is not one of `model_names`.
        """
        name = name or self.default_model
        fitting = [known for known in self.model_names() if f"{name}:".startswith(f"{known}:")]
        known = max(fitting, key=len) if fitting else self.model_name(name)
        model = self.model(known)
        langs = {model.language(code) for code in (name[len(known) + 1 :], lang) if code}
        if len(langs) > 1:
            raise ConfigError(f"model {name!r} with the language {lang!r}; expected one language")
        return model, next(iter(langs), None)

    def index(self, name: str) -> Index:
        """The current state of an index of the project, opened at the first call; several threads may search it."""
        folder = self.project.existing("indexes", name)
        with self._opening:
            if name not in self._indexes:
                from dualmoco.search.index import open_index

                self._indexes[name] = open_index(folder)
            self._indexes[name].refresh()
            return self._indexes[name]

    def warm(self, fail: Callable[[DualmocoError], object]) -> None:
        """Opens the default model in the background, so that the first request is fast; `fail` gets an error."""

        def encode() -> None:
            try:
                model = self.model()
                model.encode_as(["."], (model.languages or [UNDETERMINED])[0], progress=False)
            except DualmocoError as error:
                fail(error)

        threading.Thread(target=encode, daemon=True).start()

    @property
    def open_models(self) -> dict[str, Model]:
        """The models that are open, by name."""
        return dict(self._models)

    def render(self, request: Request, template: str, **values: Any) -> HTMLResponse:
        """A page from a template that extends `base.html.j2`; values are escaped."""
        text = TEMPLATES.get_template(template).render(
            project=self.project.name, version=VERSION, path=request.url.path, **values
        )
        return HTMLResponse(text)
