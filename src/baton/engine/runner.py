"""Runs steps on a model: tables, forward pass, sampling, copies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.core.errors import RequestError
from baton.core.request import TokenLogprobs
from baton.core.step import Admission, Step, StepResult
from baton.engine.batch import Batch, BatchBuilder
from baton.engine.grammar import GrammarCompiler, GrammarState, fill_mask
from baton.engine.storage import copy_blocks, count_poisoned, poison_blocks
from baton.kernels.interface import Kernels
from baton.layers.context import ForwardContext
from baton.layers.logprobs import token_logprobs
from baton.layers.sampler import SampleOutput, Sampler
from baton.models.registry import Model


class ModelRunner:
    """One rank's model, its KV pool and its sampler.

    Args:
        model: weights loaded and finalised for `kernels`.
        kv: the pool [P, H, L, 2, S, D], last block scratch.
        vocab_size: width of the model's logits.
        num_slots: sequences that run at once.
        max_model_len: longest sequence in tokens.
        grammars: compiles constraints; None when there is no tokenizer (the front refuses such requests).
    """

    def __init__(
        self,
        *,
        model: Model,
        kv: Tensor,
        kernels: Kernels,
        vocab_size: int,
        num_slots: int,
        max_model_len: int,
        grammars: GrammarCompiler | None,
    ) -> None:
        self._model = model
        self._kv = kv
        self._kernels = kernels
        self._vocab_size = vocab_size
        self._grammars = grammars
        self._grammar_states: list[GrammarState | None] = [None] * num_slots
        self._broken: set[int] = set()  # slots whose outputs so far break their grammar
        self._prompt_lens = [0] * num_slots
        self._sampler = Sampler(vocab_size=vocab_size, max_num_seqs=num_slots, device=kv.device)
        self._batches = BatchBuilder(num_slots=num_slots, max_tokens=max_model_len, kv=kv)

    @torch.inference_mode()
    def execute(self, step: Step) -> StepResult:
        """Run one step to its end, copies included, and bring its outcome to the host."""
        for admission in step.admissions:
            self._admit(admission)
        self._batches.apply(step)
        batch = self._batches.build(step)
        context = ForwardContext(
            positions=batch.positions, attention=batch.attention, kv=self._kv, kernels=self._kernels
        )
        if any(chunk.prompt_logprobs is not None for chunk in step.chunks):
            hidden = self._model.forward(batch.token_ids, context)
            prompt_logprobs = self._prompt_logprobs(step, batch, hidden)
            hidden = hidden[batch.last_rows]
        else:
            hidden = self._model.forward(batch.token_ids, context, batch.last_rows)
            prompt_logprobs = ((),) * len(step.chunks)
        sampled = self._sample(step, batch, hidden)
        if step.copies:
            copy_blocks(self._kv, step.copies)
        return self._collect(step, sampled, prompt_logprobs)

    @torch.inference_mode()
    def poison(self, blocks: Sequence[int]) -> None:
        """Fill whole blocks with the pattern of `storage.POISON`; done when it returns."""
        poison_blocks(self._kv, blocks)

    @torch.inference_mode()
    def count_poisoned(self, blocks: Sequence[int], first_token: int, last_token: int) -> int:
        """Tokens [first_token, last_token) of these blocks, in order, that hold the pattern."""
        return count_poisoned(self._kv, blocks, first_token, last_token)

    def _admit(self, admission: Admission) -> None:
        request = admission.request
        self._prompt_lens[admission.slot] = len(request.prompt_token_ids)
        self._sampler.admit(admission.slot, request, admission.index)
        grammar = request.params.grammar
        self._grammar_states[admission.slot] = None
        self._broken.discard(admission.slot)
        if grammar is None:
            return
        assert self._grammars is not None, "the front refuses grammars when there is no compiler"
        outputs = admission.token_ids[len(request.prompt_token_ids) :]
        compiled = self._grammars.compile(grammar)
        try:
            self._grammar_states[admission.slot] = compiled.start(outputs)
        except RequestError:  # the first token was sampled by another engine
            self._broken.add(admission.slot)

    def _sample(self, step: Step, batch: Batch, hidden: Tensor) -> SampleOutput | None:
        """Sample every row of the step from hidden [samples, M] and write the tokens into the token table."""
        if not step.samples:
            return None
        mask = fill_mask([self._grammar_states[row.slot] for row in step.samples], self._vocab_size)
        logits = self._model.logits(hidden)
        output = self._sampler.sample(logits, step.samples, self._batches.token_table, mask)
        self._batches.token_table[batch.sample_slots, batch.sample_positions] = output.token_ids
        return output.to_host()

    def _prompt_logprobs(self, step: Step, batch: Batch, hidden: Tensor) -> tuple[tuple[TokenLogprobs, ...], ...]:
        """For each chunk, logprobs of the prompt tokens that follow its positions, as far as there are any.

        hidden is [T, M]: every row of the step.
        """
        values: list[tuple[TokenLogprobs, ...]] = []
        for chunk, first in zip(step.chunks, batch.first_rows, strict=True):
            if chunk.prompt_logprobs is None:
                values.append(())
                continue
            num_rows = min(chunk.num_tokens, self._prompt_lens[chunk.slot] - 1 - chunk.start)
            logits = self._model.logits(hidden[first : first + num_rows])
            targets = self._batches.token_table[chunk.slot, chunk.start + 1 : chunk.start + 1 + num_rows]
            tensors = token_logprobs(logits, targets, chunk.prompt_logprobs)
            values.append(tensors.to_values([chunk.prompt_logprobs] * num_rows))
        return tuple(values)

    def _collect(
        self,
        step: Step,
        sampled: SampleOutput | None,
        prompt_logprobs: tuple[tuple[TokenLogprobs, ...], ...],
    ) -> StepResult:
        """Wait for the device, once, and turn tensors into values."""
        if self._kv.is_cuda:
            torch.cuda.current_stream(self._kv.device).synchronize()
        token_ids = [] if sampled is None else sampled.token_ids.tolist()
        failed = {place for place, row in enumerate(step.samples) if row.slot in self._broken}
        for place, (row, token) in enumerate(zip(step.samples, token_ids, strict=True)):
            state = self._grammar_states[row.slot]
            if state is None:
                continue
            accepted = state.accept(token)
            assert accepted, f"step {step.number} sampled token {token} against its grammar"
            if state.stuck:
                failed.add(place)
        return StepResult(
            number=step.number,
            token_ids=tuple(token_ids),
            logprobs=() if sampled is None else sampled.logprob_values(),
            prompt_logprobs=prompt_logprobs,
            failed=frozenset(failed),
        )
