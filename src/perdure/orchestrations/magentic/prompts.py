"""Prompts of the standard manager. Each can be replaced by one with the same placeholders.

A recorded answer is found by the messages before it: after a change of these texts, a resumed run may ask again.
"""

from __future__ import annotations

from typing import Final

FACTS_PROMPT: Final = """\
You are about to lead a team. This is what the team was asked for:

{task}

Do not plan yet. First write down what is known, under these four headings and no others:

1. GIVEN FACTS: what the request itself says: names, numbers, dates, sources. There may be none.
2. FACTS TO LOOK UP: what has to be found, and where one would look for it.
3. FACTS TO DERIVE: what follows by thinking or by computing.
4. GUESSES: what you remember or suppose, marked as such.
"""

PLAN_PROMPT: Final = """\
This is your team:

{team}

Now write the plan: a short list of steps that lead from what is known to what was asked for. Say who does each step. \
Leave out whoever is not needed.
"""

FULL_PROMPT: Final = """\
The team was asked for this:

{task}

The team:

{team}

What is known:

{facts}

The plan to follow:

{plan}
"""

FACTS_UPDATE_PROMPT: Final = """\
The team is still at this request:

{task}

These were the facts when it began:

{old_facts}

Write them anew, under the same four headings. Add what was learned since. Move guesses that turned out to be true to \
the facts, drop those that were wrong, and add at least one new guess with the reason for it.
"""

PLAN_UPDATE_PROMPT: Final = """\
The plan so far will not do:

{plan}

Say in a sentence or two why. Then write a new one: a short list of steps that does not repeat the mistake, and heeds \
what was said about the old one. This is your team:

{team}
"""

PROGRESS_PROMPT: Final = """\
The team works on this request:

{task}

This is the team:

{team}

Look at what was said so far, and answer these questions, each with the reason:

- is_request_satisfied: is the whole request fulfilled, so that nothing is left to do?
- is_in_loop: does the team ask or answer the same things over and over?
- is_progress_being_made: do the last messages lead on? At the very beginning they do.
- next_speaker: who of the team is to act next? One of: {names}
- instruction_or_question: what is that one told? Speak to them, and say all that they need to know.

Answer with this JSON object and nothing else:

{{
    "is_request_satisfied": {{"reason": string, "answer": boolean}},
    "is_in_loop": {{"reason": string, "answer": boolean}},
    "is_progress_being_made": {{"reason": string, "answer": boolean}},
    "next_speaker": {{"reason": string, "answer": string, one of: {names}}},
    "instruction_or_question": {{"reason": string, "answer": string}}
}}
"""

FINAL_PROMPT: Final = """\
The team was asked for this:

{task}

The work is done; the messages above show how. Write the answer for the person who asked, speaking to them. Use only \
what the team has found.
"""

CORRECTION: Final = """\
That answer can't be used: {error}. Answer again, and mend just that.
"""
