"""RAGCache's knowledge tree of passages over two tiers of memory, GPU and host. Pure.

A node is a passage after those before it in its prompt; the root is the head of all prompts, which
stays on the GPU. A node is on the GPU only if its parent is, and in the cache only if its parent
is. Memory is evicted from the leaves, the least priority of a `TreePolicy` first (RAGCache, section
5.1). *Swap out only once:* a node that leaves the GPU for the first time is copied to the host, and
its copy stays there until the node leaves the cache; when it leaves the GPU again, nothing is
copied.

Left out: questions and answers take no memory, one request runs at a time, and a node is as long as
its passage, not as its blocks. A passage that does not fit beside its own prompt is not cached.
vLLM has no such tree: it caches blocks, by LRU, on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class PassageTokens:
    """A passage of a prompt, and its length."""

    passage: int
    tokens: int


@dataclass(slots=True, eq=False)
class TreeNode:
    """A passage after those before it. Its figures outlive its tensors.

    `frequency`: requests that had it. `on_gpu`, `on_host`: where its tensors are; both: a copy.
    `gpu_priority`, `host_priority`: as the policy set them.
    """

    passage: int
    tokens: int
    parent: TreeNode | None
    children: dict[int, TreeNode] = field(default_factory=dict)
    on_gpu: bool = False
    on_host: bool = False
    children_on_gpu: int = 0
    children_cached: int = 0
    frequency: int = 0
    total_cost: float = 0.0
    times_computed: int = 0
    gpu_priority: float = 0.0
    host_priority: float = 0.0

    @property
    def is_cached(self) -> bool:
        """Whether the tensors are anywhere."""
        return self.on_gpu or self.on_host


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeRequest:
    """A request as a policy sees it: its number, and its tokens that were cached and were not."""

    number: int
    cached_tokens: int
    computed_tokens: int


class TreePolicy(Protocol):
    """Ranks the nodes. One object ranks one tree."""

    def touch(self, node: TreeNode, request: TreeRequest, *, was_cached: bool) -> None:
        """Sets both priorities of a node that a request has; `frequency` counts the request."""
        ...

    def evicted(self, node: TreeNode, *, from_gpu: bool) -> None:
        """Notes that a node left a tier."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeTokens:
    """The tokens of one prompt: found on the GPU, found on the host, and computed.

    `swapped_out`: tokens that were copied from the GPU to the host to make room.
    """

    gpu: int
    host: int
    computed: int
    swapped_out: int


class PassageTree:
    """See the module. To evict a node costs O(nodes of its tier)."""

    def __init__(
        self, policy: TreePolicy, *, head_tokens: int, gpu_tokens: int, host_tokens: int
    ) -> None:
        """Raises `ValueError` where the head alone does not fit."""
        if head_tokens > gpu_tokens:
            raise ValueError(f"a head of {head_tokens} tokens does not fit {gpu_tokens}")
        self._policy = policy
        self._gpu_tokens, self._host_tokens = gpu_tokens, host_tokens
        self._root = TreeNode(passage=-1, tokens=head_tokens, parent=None, on_gpu=True)
        self._gpu_used, self._host_used = head_tokens, 0
        self._on_gpu: dict[TreeNode, None] = {}
        self._on_host_only: dict[TreeNode, None] = {}
        self._requests = 0
        self._swapped_out = 0

    def request(self, passages: Sequence[PassageTokens], question_tokens: int) -> TreeTokens:
        """Serves a prompt: head, passages, question. Returns where its tokens were."""
        path = self._path(passages)
        cached = [node for node in path if node.is_cached]
        on_gpu = sum(node.tokens for node in cached if node.on_gpu)
        on_host = sum(node.tokens for node in cached if not node.on_gpu)
        # The head of the first request is computed, that of all others is cached.
        head = self._root.tokens if self._requests else 0
        tokens = self._root.tokens + sum(node.tokens for node in path) + question_tokens
        computed = tokens - head - on_gpu - on_host
        request = TreeRequest(
            number=self._requests, cached_tokens=tokens - computed, computed_tokens=computed
        )
        self._requests += 1
        self._swapped_out = 0
        for node in path:
            node.frequency += 1
            self._policy.touch(node, request, was_cached=node.is_cached)
        for node in path:
            if not node.on_gpu and not self._load(node, path):
                break
        return TreeTokens(
            gpu=head + on_gpu, host=on_host, computed=computed, swapped_out=self._swapped_out
        )

    def check_integrity(self) -> None:
        """Asserts that no tier holds too much, and that each cached node has its parent."""
        gpu = sum(node.tokens for node in self._on_gpu)
        assert gpu + self._root.tokens == self._gpu_used <= self._gpu_tokens
        cached = [*self._on_gpu, *self._on_host_only]
        host = sum(node.tokens for node in cached if node.on_host)
        assert host == self._host_used <= self._host_tokens
        assert all(node.on_gpu for node in self._on_gpu)
        assert all(node.on_host and not node.on_gpu for node in self._on_host_only)
        for node in (self._root, *cached):
            children = node.children.values()
            assert node.children_on_gpu == sum(child.on_gpu for child in children)
            assert node.children_cached == sum(child.is_cached for child in children)
            assert node.is_cached or not node.children_cached, "a node without its parent"
            assert node.on_gpu or not node.children_on_gpu, "on the GPU, and its parent is not"

    def _path(self, passages: Sequence[PassageTokens]) -> list[TreeNode]:
        node, path = self._root, []
        for each in passages:
            child = node.children.get(each.passage)
            if child is None:
                child = TreeNode(passage=each.passage, tokens=each.tokens, parent=node)
                node.children[each.passage] = child
            node = child
            path.append(node)
        return path

    def _load(self, node: TreeNode, pinned: Sequence[TreeNode]) -> bool:
        """Brings a node to the GPU: computed, or from the host, where its copy stays."""
        while self._gpu_used + node.tokens > self._gpu_tokens:
            leaves = (n for n in self._on_gpu if not n.children_on_gpu and n not in pinned)
            victim = min(leaves, key=lambda leaf: leaf.gpu_priority, default=None)
            if victim is None:
                return False
            self._leave_gpu(victim, pinned)
        assert node.parent is not None
        node.parent.children_on_gpu += 1
        node.parent.children_cached += not node.is_cached
        node.on_gpu = True
        self._gpu_used += node.tokens
        self._on_gpu[node] = None
        self._on_host_only.pop(node, None)
        return True

    def _leave_gpu(self, node: TreeNode, pinned: Sequence[TreeNode]) -> None:
        """Takes a leaf from the GPU; copies it to the host if it has no copy there, and room."""
        if not node.on_host and self._has_host_room(node, pinned):  # swap out only once
            node.on_host = True
            self._host_used += node.tokens
            self._swapped_out += node.tokens
        if not node.on_host:  # its children are on the host only, and are lost with it
            for below in _below(node):
                if below.is_cached:
                    self._leave_host(below)
        assert node.parent is not None
        node.on_gpu = False
        node.parent.children_on_gpu -= 1
        node.parent.children_cached -= not node.is_cached
        self._gpu_used -= node.tokens
        del self._on_gpu[node]
        if node.on_host:
            self._on_host_only[node] = None
        self._policy.evicted(node, from_gpu=True)

    def _has_host_room(self, node: TreeNode, pinned: Sequence[TreeNode]) -> bool:
        """Makes room for a node on the host, of leaves that only the host has."""
        while self._host_used + node.tokens > self._host_tokens:
            leaves = (n for n in self._on_host_only if not n.children_cached and n not in pinned)
            victim = min(leaves, key=lambda leaf: leaf.host_priority, default=None)
            if victim is None:
                return False
            self._leave_host(victim)
        return True

    def _leave_host(self, node: TreeNode) -> None:
        """Takes a leaf that only the host has from the cache."""
        assert node.parent is not None and not node.on_gpu
        node.on_host = False
        node.parent.children_cached -= 1
        self._host_used -= node.tokens
        del self._on_host_only[node]
        self._policy.evicted(node, from_gpu=False)


def _below(node: TreeNode) -> Iterator[TreeNode]:
    for child in node.children.values():
        yield from _below(child)
        yield child
