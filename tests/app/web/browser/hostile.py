"""What a model may write to do harm in a page, and what it may write at length."""

HOSTILE = """<think>
<script>window.hurt = 'thinking'</script><img src=x onerror="window.hurt='thinking'">
</think>

<script>window.hurt = 'script'</script>
<img src="x" onerror="window.hurt = 'onerror'"> <svg onload="window.hurt='svg'"></svg>
<iframe srcdoc="<script>parent.hurt='frame'</script>"></iframe>

[click](javascript:window.hurt='link') and [data](data:text/html,<script>window.hurt=1</script>)
and [own](#/models) and <javascript:window.hurt=2> and [good](https://example.com/a?b=c "a title")

![picture](https://example.com/track.png) ![bad](javascript:window.hurt=3)

| a | b |
|--:|---|
| <b>x</b> | `<i>y</i>` |

```html" onmouseover="window.hurt=4
<script>window.hurt = 'code'</script>
```

```html
<img src=x onerror="window.hurt = 'highlighted'">
```
"""

_PART = """# A heading

Some words with *emphasis*, **weight** and `code`, in a line that is long enough to be wrapped on a narrow screen.

- one
- two

```python
def add(left: int, right: int) -> int:
    return left + right  # a comment that makes this line long enough to need a scroll bar of its own on a narrow screen
```

"""
LONG = 8 * _PART
