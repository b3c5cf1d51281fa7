def f(tools):
    """Docs about `tool_choice=none`."""
    a = ("# Tools\nOne.\n\n" "```json\n" f"{dump(tools)}\n" "```")
    b = '## More\n\n```json\n' + dump(tools) + '\n```'
    c = f"""Say `thinking_effort={e!r}`, `thinking_effort={e}` {{x}}"""
    d = r'`tool_choice=required` \d' "\x41\u00e9\U0001F600\101\N{DASH}"
    return b"`tool_choice=none`" if a else '`response_format=json_schema`\n' f'```json\n{s}\n```'
