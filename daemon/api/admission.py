"""From a request to its place in the engine's queue.

Everything that can be refused is refused here, before a token is read.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from daemon.api.answer import Answer
from daemon.api.dialect import Dialect
from daemon.api.door import Door, Incoming
from daemon.api.encoding import grammar_of, prompt_of
from daemon.api.exchange import Exchange
from daemon.api.leasing import Leased
from daemon.api.rules import (
    answer_limit,
    callable_tools,
    constraint_for,
    sampling_for,
    without,
)
from daemon.api.session_key import family_key, session_key
from daemon.chat import CallRule, ChatRequest, Conversation, Envelope
from daemon.deliveries import Generation
from daemon.generation import GenerationRequest
from mlx_backend.interface import LoadedModel
from mlx_backend.messages import AnswerForm, Prompt, Sampling


class Admission:
    """The way in of one dialect's requests."""

    def __init__(self, dialect: Dialect, door: Door) -> None:
        self._dialect = dialect
        self._door = door

    async def admit(self, request: ChatRequest, leased: Leased, incoming: Incoming) -> Exchange:
        """Queue a request. Raises the DaemonError that refuses it, or ClientLeft.

        The lease has to last as long as the exchange does.
        """
        model = leased.model
        sampling = self._sampling(request, model)
        constraint = constraint_for(request)
        prompt = await prompt_of(request, model, self._door, incoming)
        if constraint is not None:
            grammar = await grammar_of(request, constraint, prompt, model, self._door, incoming)
            sampling = replace(sampling, grammar=grammar)
        generation = self._submit(request, prompt, sampling, leased, incoming)
        number = incoming.request_id.removeprefix("req_")
        answer_id = self._dialect.id_prefix + (_secret() if request.is_kept else number)
        envelope = Envelope(answer_id, leased.name, int(self._door.clock()))
        call_id = self._dialect.call_prefix + number
        answer = _answer(request, prompt, generation, model, call_id)
        return Exchange(request, envelope, answer, prompt, model.prompts)

    def _sampling(self, request: ChatRequest, model: LoadedModel) -> Sampling:
        sampling = sampling_for(request.sampling, model.info, self._door.draw_seed())
        if request.tool_choice.rule is CallRule.NONE:
            return without(sampling, model.call_mark_ids)
        return sampling

    def _submit(
        self,
        request: ChatRequest,
        prompt: Prompt,
        sampling: Sampling,
        leased: Leased,
        incoming: Incoming,
    ) -> Generation:
        context = leased.model.info.context_size
        limit = answer_limit(request.max_tokens, len(prompt), context, request.fields.prompt)
        return self._door.engine.submit(
            GenerationRequest(
                incoming.request_id,
                prompt,
                limit,
                sampling,
                session=session_key(request, incoming.headers),
                family=family_key(incoming.headers),
                is_limited=request.max_tokens is not None,
                model=leased.key,
            )
        )


def _secret() -> str:
    """Whoever knows the id of a kept answer can read it, and those of requests are shown to all."""
    return secrets.token_hex(16)


def _answer(
    request: ChatRequest, prompt: Prompt, generation: Generation, model: LoadedModel, call_id: str
) -> Answer:
    form = AnswerForm(
        request.stop,
        callable_tools(request),
        prompt.begins_in_thought,
        is_raw=not isinstance(request.prompt, Conversation),
    )
    return Answer(
        generation,
        model.output(form),
        len(prompt),
        call_id,
        has_one_call=not request.tool_choice.may_repeat,
        text_of=model.token_bytes,
        is_thinking=prompt.begins_in_thought,
    )
