"""Pictures of workflows: the text in both languages, and the files drawn by Graphviz."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, strategies as st

from perdure import Case, Default, Executor, WorkflowBuilder, WorkflowContext, WorkflowExecutor, WorkflowViz, handler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import Workflow

NODE = re.compile(r'^ *([A-Za-z][0-9A-Za-z_]*)\["([^"]*)"\];$', re.MULTILINE)
SUBGRAPH = re.compile(r'^ *subgraph ([A-Za-z][0-9A-Za-z_]*)(?:\["([^"]*)"\])?$', re.MULTILINE)
DOT_STRING = r'"((?:[^"\\]|\\.)*)"'
DOT_NODE = re.compile(rf"^ *{DOT_STRING} \[.*label={DOT_STRING}\];$", re.MULTILINE)

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="the graphviz binary is not installed")


class Step(Executor):
    @handler
    async def take(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.send_message(message)


class Join(Executor):
    @handler
    async def take(self, messages: list[str], ctx: WorkflowContext[str]) -> None:
        await ctx.send_message("".join(messages))


def chain(*ids: str) -> Workflow:
    steps = [Step(id_) for id_ in ids]
    builder = WorkflowBuilder(start_executor=steps[0])
    return (builder.add_chain(steps) if len(steps) > 1 else builder).build()


def fan(source_ids: Sequence[str] = ("b", "c"), target_id: str = "d") -> Workflow:
    start, sources = Step("a"), [Step(id_) for id_ in source_ids]
    builder = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, sources)
    return builder.add_fan_in_edges(sources, Join(target_id)).build()


def around(*subs: tuple[str, Workflow]) -> Workflow:
    """A workflow that sends everything from `start` into the given sub-workflows."""
    start = Step("start")
    builder = WorkflowBuilder(start_executor=start)
    for id_, workflow in subs:
        builder.add_edge(start, WorkflowExecutor(workflow, id_))
    return builder.build()


def is_short(message: str) -> bool:
    return len(message) < 10


def mermaid(workflow: Workflow) -> str:
    return WorkflowViz(workflow).to_mermaid()


def digraph(workflow: Workflow) -> str:
    return WorkflowViz(workflow).to_digraph()


def first_eight(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]


DRAWABLE = st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))


class TestMermaid:
    def test_nodes_come_before_edges_and_the_start_is_labelled(self) -> None:
        assert mermaid(chain("read", "write")) == (
            'flowchart TD\n  read["read (Start)"];\n  write["write"];\n  read --> write;'
        )

    def test_an_edge_with_a_condition_is_dotted(self) -> None:
        a, b = Step("a"), Step("b")
        workflow = WorkflowBuilder(start_executor=a).add_edge(a, b, condition=is_short).build()
        assert "  a -. conditional .-> b;" in mermaid(workflow).splitlines()

    def test_the_edges_of_a_switch_are_plain(self) -> None:
        a, b, c = Step("a"), Step("b"), Step("c")
        builder = WorkflowBuilder(start_executor=a)
        workflow = builder.add_switch_case_edge_group(a, [Case(is_short, b), Default(c)]).build()
        assert mermaid(workflow).splitlines()[-2:] == ["  a --> b;", "  a --> c;"]

    def test_a_fan_in_is_a_node_between_its_sources_and_its_target(self) -> None:
        node = f"fan_in__d__{first_eight('d|b|c')}"
        assert mermaid(fan()).splitlines()[5:] == [
            f"  {node}((fan-in))",
            f"  b --> {node};",
            f"  c --> {node};",
            f"  {node} --> d;",
            "  a --> b;",
            "  a --> c;",
        ]

    def test_the_digest_of_a_fan_in_does_not_depend_on_the_order_of_its_sources(self) -> None:
        node = f"fan_in__d__{first_eight('d|b|c')}((fan-in))"
        assert node in mermaid(fan(["b", "c"]))
        assert node in mermaid(fan(["c", "b"]))

    def test_a_sub_workflow_is_a_subgraph_after_the_edges(self) -> None:
        assert mermaid(around(("sub", chain("x", "y")))).splitlines()[1:] == [
            '  start["start (Start)"];',
            '  sub["sub"];',
            "  start --> sub;",
            "  subgraph sub",
            '    sub__x["x (Start)"];',
            '    sub__y["y"];',
            "    sub__x --> sub__y;",
            "  end",
        ]

    def test_nested_sub_workflows_are_named_by_their_whole_path_and_titled_by_their_id(self) -> None:
        text = mermaid(around(("left", around(("sub", chain("x")))), ("right", around(("sub", chain("x"))))))
        assert SUBGRAPH.findall(text) == [("left", ""), ("left__sub", "sub"), ("right", ""), ("right__sub", "sub")]
        assert {"left__sub__x", "right__sub__x"} < {name for name, _ in NODE.findall(text)}

    def test_a_sub_workflow_that_is_the_start_is_titled_so(self) -> None:
        sub = WorkflowExecutor(chain("x"), "sub")
        text = mermaid(WorkflowBuilder(start_executor=sub).build())
        assert SUBGRAPH.findall(text) == [("sub", "sub (Start)")]

    @pytest.mark.parametrize(
        ("id_", "name"), [("call-model", "call_model"), ("2nd", "n_2nd"), ("_x", "n__x"), ("end", "n_end")]
    )
    def test_an_id_that_mermaid_would_not_take_is_spelled_so_that_it_does(self, id_: str, name: str) -> None:
        assert NODE.findall(mermaid(chain("a", id_)))[1] == (name, id_)

    def test_ids_that_are_spelled_alike_stay_apart_and_the_plain_one_keeps_its_name(self) -> None:
        text = mermaid(chain("step-a", "step a", "step_a", "step_a_2"))
        assert [name for name, _ in NODE.findall(text)] == ["step_a_3", "step_a_4", "step_a", "step_a_2"]
        assert text.splitlines()[5:] == ["  step_a_3 --> step_a_4;", "  step_a_4 --> step_a;", "  step_a --> step_a_2;"]

    def test_a_node_of_a_sub_workflow_is_not_taken_for_one_outside(self) -> None:
        start, sub = Step("sub__x"), WorkflowExecutor(chain("x"), "sub")
        text = mermaid(WorkflowBuilder(start_executor=start).add_edge(start, sub).build())
        assert [name for name, _ in NODE.findall(text)] == ["sub__x", "sub", "sub__x_2"]

    def test_an_executor_with_the_name_of_a_fan_in_keeps_it(self) -> None:
        taken = f"fan_in__d_e__{first_eight('d e|b|c')}"
        start, b, c = Step(taken), Step("b"), Step("c")
        builder = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [b, c])
        text = mermaid(builder.add_fan_in_edges([b, c], Join("d e")).build())
        assert NODE.findall(text)[0] == (taken, f"{taken} (Start)")
        assert f"  {taken}_2((fan-in))" in text.splitlines()

    def test_labels_can_hold_what_mermaid_reads_as_syntax(self) -> None:
        text = mermaid(chain("a", 'say "hi" [now]\n<b>#1 & `x`\\n'))
        assert NODE.findall(text)[1][1] == ("say #quot;hi#quot; [now]<br/>#lt;b#gt;#35;1 #amp; #96;x#96;#92;n")

    def test_the_ways_in_from_outside_are_drawn_if_asked_for(self) -> None:
        viz = WorkflowViz(chain("a", "b"))
        assert "internal" not in viz.to_mermaid()
        text = viz.to_mermaid(include_internal_executors=True)
        assert ("internal_b", "internal:b") in NODE.findall(text)
        assert "  internal_b --> b;" in text.splitlines()

    @given(st.lists(st.text(DRAWABLE, min_size=1), min_size=2, max_size=8, unique=True))
    def test_every_executor_is_a_node_of_its_own_whatever_its_id(self, ids: list[str]) -> None:
        text = mermaid(around(("sub", chain(*ids))))
        assert len(text.split("\n")) == 1 + 3 + 1 + len(ids) + len(ids) - 1 + 1
        assert len({name for name, _ in NODE.findall(text)}) == len(ids) + 2


class TestDigraph:
    def test_nodes_come_before_edges_and_the_start_is_green(self) -> None:
        assert digraph(chain("read", "write")).splitlines() == [
            "digraph Workflow {",
            "  rankdir=TD;",
            "  node [shape=box, style=filled, fillcolor=lightblue];",
            "  edge [color=black, arrowhead=vee];",
            "",
            '  "read" [fillcolor=lightgreen, label="read\\n(Start)"];',
            '  "write" [label="write"];',
            '  "read" -> "write";',
            "}",
        ]

    def test_an_edge_with_a_condition_is_dashed(self) -> None:
        a, b = Step("a"), Step("b")
        workflow = WorkflowBuilder(start_executor=a).add_edge(a, b, condition=is_short).build()
        assert '  "a" -> "b" [style=dashed, label="conditional"];' in digraph(workflow).splitlines()

    def test_a_fan_in_is_a_node_between_its_sources_and_its_target(self) -> None:
        node = f"fan_in::d::{first_eight('d|b|c')}"
        assert digraph(fan()).splitlines()[9:-1] == [
            f'  "{node}" [shape=ellipse, fillcolor=lightgoldenrod, label="fan-in"];',
            f'  "b" -> "{node}";',
            f'  "c" -> "{node}";',
            f'  "{node}" -> "d";',
            '  "a" -> "b";',
            '  "a" -> "c";',
        ]

    def test_a_sub_workflow_is_a_cluster(self) -> None:
        lines = digraph(around(("sub", chain("x", "y")))).splitlines()
        assert re.fullmatch(r"  subgraph cluster_[0-9a-f]{8} \{", lines[8])
        assert lines[9:] == [
            '    label="sub-workflow: sub";',
            "    style=dashed;",
            '    "sub/x" [fillcolor=lightgreen, label="x\\n(Start)"];',
            '    "sub/y" [label="y"];',
            '    "sub/x" -> "sub/y";',
            "  }",
            "}",
        ]

    def test_nested_sub_workflows_with_one_id_are_clusters_and_nodes_of_their_own(self) -> None:
        text = digraph(around(("left", around(("sub", chain("x")))), ("right", around(("sub", chain("x"))))))
        assert {"left/sub/x", "right/sub/x"} < {name for name, _ in DOT_NODE.findall(text)}
        assert len(set(re.findall(r"cluster_\w+", text))) == 4

    def test_a_slash_in_an_id_is_not_taken_for_a_path(self) -> None:
        start, sub = Step("sub/x"), WorkflowExecutor(chain("x"), "sub")
        text = digraph(WorkflowBuilder(start_executor=start).add_edge(start, sub).build())
        assert [name for name, _ in DOT_NODE.findall(text)] == ["sub/x", "sub", "sub/x_2"]

    def test_the_ways_in_from_outside_are_drawn_if_asked_for(self) -> None:
        viz = WorkflowViz(chain("a", "b"))
        assert "internal" not in viz.to_digraph()
        assert '  "internal:b" -> "b";' in viz.to_digraph(include_internal_executors=True).splitlines()

    @given(st.lists(st.text(DRAWABLE, min_size=1), min_size=2, max_size=8, unique=True))
    def test_every_executor_is_a_node_of_its_own_whatever_its_id(self, ids: list[str]) -> None:
        text = digraph(around(("sub", chain(*ids))))
        assert len({name for name, _ in DOT_NODE.findall(text)}) == len(ids) + 2
        assert text.encode()


class TestFiles:
    def test_dot_needs_no_graphviz(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "graphviz", None)
        viz = WorkflowViz(chain("a", "b"))
        path = viz.export(format="dot", filename=str(tmp_path / "w.dot"))
        assert path == str(tmp_path / "w.dot")
        assert Path(path).read_text(encoding="utf-8") == viz.to_digraph()

    def test_without_a_filename_the_file_is_temporary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        path = Path(WorkflowViz(chain("a", "b")).export("dot"))
        assert path.parent == tmp_path
        assert path.suffix == ".dot"
        assert path.read_text(encoding="utf-8").startswith("digraph Workflow {")

    def test_a_filename_without_an_extension_gets_that_of_the_format(self, tmp_path: Path) -> None:
        assert WorkflowViz(chain("a")).export("dot", tmp_path / "w") == str(tmp_path / "w.dot")
        assert (tmp_path / "w.dot").exists()

    def test_an_extension_of_another_format_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"'w\.png' does not match the format 'svg'; name the file 'w\.svg'"):
            WorkflowViz(chain("a")).save_svg(str(tmp_path / "w.png"))

    def test_an_unknown_format_is_refused(self) -> None:
        with pytest.raises(ValueError, match="Unsupported format: gif; choose one of svg, png, pdf, dot"):
            WorkflowViz(chain("a")).export("gif")  # pyright: ignore[reportArgumentType] - what is tested

    def test_without_the_python_package_the_error_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "graphviz", None)
        with pytest.raises(ImportError, match=r"pip install 'perdure\[viz\]', and the graphviz binary"):
            WorkflowViz(chain("a")).save_svg(tmp_path / "w.svg")
        assert list(tmp_path.iterdir()) == []

    def test_without_the_binary_the_error_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ImportError, match=r"The graphviz executables are not found.*apt-get install graphviz"):
            WorkflowViz(chain("a")).save_svg(tmp_path / "w.svg")
        assert list(tmp_path.iterdir()) == []

    @needs_dot
    def test_an_svg_shows_every_label_as_it_was_written(self, tmp_path: Path) -> None:
        ids = ['say "hi"', "a & b &amp; c", "<b>", "back\\nslash\\", "[x] {y} | z", "größer 步骤"]
        path = WorkflowViz(around(("the sub", chain(*ids)))).save_svg(str(tmp_path / "w.svg"))
        drawn = ["".join(text.itertext()) for text in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]
        assert set(drawn) == {"start", "(Start)", "the sub", "sub-workflow: the sub", *ids}

    @needs_dot
    def test_png_and_pdf_are_what_their_names_say(self, tmp_path: Path) -> None:
        viz = WorkflowViz(fan())
        assert Path(viz.save_png(tmp_path / "w.png")).read_bytes().startswith(b"\x89PNG")
        assert Path(viz.save_pdf(tmp_path / "w.pdf")).read_bytes().startswith(b"%PDF")

    def test_importing_perdure_does_not_load_graphviz(self) -> None:
        code = "import sys, perdure; sys.exit('graphviz' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
