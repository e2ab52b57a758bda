"""The test doubles keep the contract of a real target and drafter, and refuse what breaks it."""

import pytest
import torch

from draftproof.sampling import SeededSource, probs
from draftproof.testing import (
    AlwaysWrong,
    ByteTokenizer,
    ChainTarget,
    FnTarget,
    LawDrafter,
    OracleDrafter,
    RandomTable,
    ScriptDrafter,
    SilentDrafter,
    TableTarget,
    WrongAt,
)
from draftproof.types import EMPTY_DRAFT, Draft, DraftRequest, SamplingParams
from draftproof.verify import EnumeratingSource, exact_law, token_rule

PLAIN = SamplingParams()
CYCLE = ChainTarget([1, 2, 3, 0], 4)


def request(tokens, max_nodes=3, id=0, params=PLAIN, source=None):
    return DraftRequest(id, tokens, len(tokens), params, source or SeededSource(0), max_nodes)


def greedy(target, tokens, num):
    tokens = list(tokens)
    for _ in range(num):
        tokens.append(int(target.next_logits(tokens).argmax()))
    return tokens


def test_table_target_states_the_logarithm_of_its_law():
    table = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0], [0.5, 0.25, 0.25]])
    target = TableTarget(table)
    assert target.vocab_size == 3
    for last, row in enumerate(table):
        assert torch.equal(target.next_logits([1, last]), row.log())
    assert target.next_logits([1])[0] == -torch.inf
    assert torch.equal(TableTarget([0.5, 0.5]).next_logits([0, 1, 1]), torch.tensor([0.5, 0.5]).log())


def test_score_returns_a_row_for_the_root_and_every_node_of_a_tree():
    law = RandomTable(4, seed=1)
    target = TableTarget(law)
    row = target.open([3, 1])
    target.prefill(row, [3, 1])
    tree = Draft((0, 1, 2, 3), (-1, -1, 0, 2))
    (output,) = target.score([row], [2], [tree])
    paths = [(), (0,), (1,), (0, 2), (0, 2, 3)]
    expected = torch.stack([law((3, 1, 2, *path)) for path in paths]).log().float()
    assert torch.equal(output.logits, expected)
    assert target.held(row) == [3, 1]
    target.keep(row, 3, [0, 2])
    assert target.held(row) == [3, 1, 2, 0, 2]
    assert target.num_score_calls == 1


def test_rows_of_one_call_do_not_see_each_other():
    target = TableTarget(RandomTable(4, seed=1))
    rows = [target.open([t]) for t in (0, 1)]
    for row, token in zip(rows, (0, 1)):
        target.prefill(row, [token])
    both = target.score(rows, [2, 3], [Draft.chain([1]), EMPTY_DRAFT])
    assert torch.equal(both[0].logits[1], target.next_logits([0, 2, 1]))
    assert torch.equal(both[1].logits[0], target.next_logits([1, 3]))
    assert both[1].logits.shape == (1, 4)


def test_keep_refuses_a_wrong_length_a_broken_path_and_a_missing_score():
    target = TableTarget([0.5, 0.5])
    row = target.open([0])
    target.prefill(row, [0])
    with pytest.raises(AssertionError, match="without a score"):
        target.keep(row, 2, [])
    target.score([row], [1], [Draft((0, 1, 0), (-1, -1, 0))])
    with pytest.raises(AssertionError, match="position 2, not 3"):
        target.keep(row, 3, [])
    with pytest.raises(AssertionError, match="not a path"):
        target.keep(row, 2, [1, 2])
    target.keep(row, 2, [0, 2])
    with pytest.raises(AssertionError, match="without a score"):
        target.keep(row, 3, [])


def test_positions_at_the_limit_are_refused_and_tree_depth_is_what_counts():
    target = TableTarget([0.5, 0.5], max_length=4)
    row = target.open([0, 1])
    target.prefill(row, [0, 1])
    target.score([row], [0], [Draft((0, 1), (-1, -1))])
    with pytest.raises(AssertionError, match="position 4 is not below 4"):
        target.score([row], [0], [Draft.chain([0, 1])])
    with pytest.raises(AssertionError, match="do not fit"):
        target.prefill(row, [0] * 5)


def test_rows_are_taken_given_back_and_reused_by_longest_prefix():
    target = TableTarget([0.5, 0.5], max_rows=2)
    first, second = target.open([0, 0, 0]), target.open([1, 1])
    target.prefill(first, [0, 0, 0])
    target.prefill(second, [1, 1])
    with pytest.raises(AssertionError, match="rows are taken"):
        target.open([0])
    target.free(first)
    target.free(second)
    assert target.num_busy == 0
    fed = target.num_fed_tokens
    row = target.open([1, 1, 0])
    target.prefill(row, [1, 1, 0])
    assert row == second
    assert target.num_fed_tokens == fed + 1
    with pytest.raises(AssertionError, match="not open"):
        target.score([first], [0], [EMPTY_DRAFT])


def test_features_name_position_and_token():
    target = TableTarget([0.5, 0.5], feature_width=3)
    row = target.open([1, 0])
    target.prefill(row, [1, 0])
    assert target.features(row).tolist() == [[0, 1, 0], [1, 0, 0]]
    (output,) = target.score([row], [1], [Draft((0, 1), (-1, -1))])
    assert output.features.tolist() == [[2, 1, 0], [3, 0, 0], [3, 1, 0]]


def test_chain_target_goes_where_it_is_sent():
    assert greedy(CYCLE, [0], 5) == [0, 1, 2, 3, 0, 1]
    assert CYCLE.next_logits([2]).tolist() == [0, 0, 0, 10]


def test_oracle_proposes_the_greedy_text_and_wrong_drafters_miss_it_where_they_say():
    assert OracleDrafter(CYCLE).propose([request([0])])[0].tokens == (1, 2, 3)
    assert WrongAt(CYCLE, 1).propose([request([0])])[0].tokens == (1, 3, 3)
    assert AlwaysWrong(CYCLE).propose([request([0])])[0].tokens == (2, 3, 0)
    assert OracleDrafter(CYCLE, num_tokens=1).propose([request([0])])[0].tokens == (1,)
    assert OracleDrafter(CYCLE).propose([request([0], max_nodes=0)])[0] == EMPTY_DRAFT


def test_oracle_knows_the_penalties_of_the_request():
    params = SamplingParams(temperature=0, banned_tokens=(2,))
    assert OracleDrafter(CYCLE).propose([request([0], params=params)])[0].tokens == (1, 0, 1)


def test_script_runs_once_per_sequence_and_is_cut_to_the_budget():
    tree = Draft((5, 6, 7), (-1, -1, 1))
    drafter = ScriptDrafter([[1, 2, 3], tree])
    assert drafter.propose([request([0], 2), request([0], 3, id=7)])[0].tokens == (1, 2)
    assert drafter.propose([request([0, 1], 2)])[0] == Draft((5, 6), (-1, -1))
    assert drafter.propose([request([0, 1], 3)])[0] == EMPTY_DRAFT
    assert drafter.propose([request([0], 3, id=7)])[0] == tree


def test_drafters_log_snapshots_of_requests_and_releases():
    drafter, tokens = SilentDrafter(), [1, 2]
    assert drafter.propose([request(tokens)]) == [EMPTY_DRAFT]
    tokens.append(3)
    drafter.release(0)
    assert drafter.requests[0].tokens == (1, 2)
    assert drafter.released == [0]


@pytest.mark.parametrize("top", [0, 2])
def test_law_drafter_draws_exactly_from_the_law_it_states(top):
    def run(source):
        (draft,) = LawDrafter(RandomTable(3, seed=4), num_tokens=2, top=top).propose([request([1], source=source)])
        stated = [draft.probs.prob(i, token) for i, token in enumerate(draft.tokens)]
        return draft.tokens, stated[0] * stated[1]

    law = exact_law(run)
    assert len(law) == (9 if top == 0 else 4)
    for (_, stated), probability in law.items():
        assert probability == pytest.approx(stated, abs=1e-14)


@pytest.mark.parametrize("drawn", ["independent", "without_replacement", "hybrid"])
def test_law_drafter_draws_siblings_as_it_says(drawn):
    """The exact law of two siblings' tokens, from the stated law alone."""
    q = [0.5, 0.2, 0.3]
    drafter = LawDrafter(q, drawn=drawn, parents=(-1, -1, 1))

    def run(source):
        (draft,) = drafter.propose([request([0], 3, source=source)])
        assert (draft.parents, draft.drawn) == ((-1, -1, 1), drawn)
        return draft.tokens[:2]

    expected = {
        "independent": {(a, b): q[a] * q[b] for a in range(3) for b in range(3)},
        "without_replacement": {(a, b): q[a] * q[b] / (1 - q[a]) for a in range(3) for b in range(3) if a != b},
        "hybrid": {(1, 0): 0.2 / 0.5, (2, 0): 0.3 / 0.5},
    }
    assert exact_law(run) == pytest.approx(expected[drawn], abs=1e-14)


def test_law_drafter_cuts_its_tree_to_the_budget_and_to_what_the_law_can_supply():
    source = EnumeratingSource()
    (draft,) = LawDrafter([0.5, 0.5, 0.0], drawn="without_replacement", parents=(-1, -1, -1, 2, 0)).propose(
        [request([0], 5, source=source)]
    )
    assert draft.parents == (-1, -1, 0)
    (draft,) = LawDrafter([0.5, 0.5, 0.0], drawn="independent", parents=(-1, -1, -1, 2)).propose(
        [request([0], 2, source=source)]
    )
    assert draft.parents == (-1, -1)
    (draft,) = LawDrafter([0.2, 0.5, 0.3], drawn="fixed", parents=(-1, -1, 0)).propose([request([0], 3)])
    assert draft == Draft((1, 2, 1), (-1, -1, 0))


def test_fixed_law_drafter_proposes_the_most_likely_token_without_probabilities():
    (draft,) = LawDrafter([0.2, 0.5, 0.3], fixed=True).propose([request([0], 2)])
    assert draft == Draft.chain([1, 1])


def test_doubles_and_verifier_together_emit_the_target_law():
    law, drafter = RandomTable(3, seed=8), LawDrafter(RandomTable(3, seed=9), num_tokens=1)

    def run(source):
        target = TableTarget(law, dtype=torch.float64)
        row = target.open([0])
        (draft,) = drafter.propose([request([0], source=source)])
        (output,) = target.score([row], [0], [draft])
        result = token_rule(draft, probs(output.logits, SamplingParams()), source)
        target.keep(row, 1, result.path)
        return (*draft.tokens, result.next_token)[0 if result.path else 1]

    emitted = exact_law(run)
    assert [emitted[token] for token in range(3)] == pytest.approx(law((0,)).tolist(), abs=1e-12)


def test_random_table_depends_on_the_whole_prefix_and_on_nothing_else():
    table, again = RandomTable(4, seed=3, zeros=0.5), RandomTable(4, seed=3, zeros=0.5)
    prefixes = [(), (0,), (1,), (0, 1), (1, 1)]
    again((2, 2))
    assert all(torch.equal(table(prefix), again(prefix)) for prefix in prefixes)
    assert len({tuple(table(prefix).tolist()) for prefix in prefixes}) == len(prefixes)


def test_fn_target_asks_its_function_with_the_whole_prefix():
    target = FnTarget(lambda prefix: [float(sum(prefix)), 0.0])
    row = target.open([2])
    target.prefill(row, [1, 0])
    assert target.score([row], [1], [Draft.chain([1])])[0].logits.tolist() == [[2, 0], [3, 0]]


def test_byte_tokenizer_round_trips_and_shows_incomplete_characters():
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("naïve €")
    assert tokenizer.decode([*ids, tokenizer.eos_token_id]) == "naïve €"
    assert tokenizer.decode(ids[:-1]) == "naïve �"
    assert tokenizer.decode(ids[:3]) == "na�"


def test_enumerating_source_can_be_used_where_a_request_wants_a_generator():
    source = EnumeratingSource()
    assert LawDrafter([0.0, 1.0]).propose([request([0], 2, source=source)])[0].tokens == (1, 1)
