"""Results of MCP tools as text for a policy: nothing is dropped without being named."""

from __future__ import annotations

import json

import mcp_types as types


def result_text(result: types.CallToolResult) -> str:
    """Return the text of a result's blocks; images, sounds and files are named, not shown.

    Structured content stands for a result without blocks.
    """
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(block_text(block) for block in result.content)


def block_text(block: types.ContentBlock) -> str:
    """Return a block's text, or its name in brackets.

    Example:
        block_text(image) == "[image/png of 68 bytes, not shown]"
    """
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.ImageContent | types.AudioContent):
        return f"[{block.mime_type} of {_num_bytes(block.data)} bytes, not shown]"
    if isinstance(block, types.ResourceLink):
        return f"[resource {block.name}: {block.uri}]"
    resource = block.resource
    if isinstance(resource, types.TextResourceContents):
        return f"[resource {resource.uri}]\n{resource.text}"
    kind = resource.mime_type or "bytes"
    return f"[resource {resource.uri}: {kind} of {_num_bytes(resource.blob)} bytes, not shown]"


def _num_bytes(base64: str) -> int:
    return len(base64.rstrip("=")) * 3 // 4
