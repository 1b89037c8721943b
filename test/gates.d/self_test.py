"""Each gate is shown a tree that it must let through, and then that tree with one thing wrong in it. A gate that cannot fail is none."""

import os
import shutil

GOOD = {
    "include/onceward/base/text.h": "#pragma once\n\n#include <stddef.h>\n\nsize_t text_len(const char *text);\n",
    "src/base/text.c": "#include \"onceward/base/text.h\"\n\n#include <string.h>\n\nsize_t text_len(const char *text)\n{\n    return strlen(text);\n}\n",
    "include/onceward/core/rule.h": "#pragma once\n\nint rule_first(void); /* its body calls the second */\nint rule_second(void);\n",
    "src/core/first.c": "#include \"onceward/base/text.h\"\n#include \"onceward/core/rule.h\"\n\nint rule_first(void)\n{\n"
                        "    return (int)text_len(\"sprintf(\") + rule_second(); /* system( */\n}\n",
    "src/core/second.c": "#include \"onceward/core/rule.h\"\n\nint rule_second(void)\n{\n    return 2;\n}\n",
    "src/forward/http.c": "#include \"onceward/core/rule.h\"\n\n#include <curl/curl.h>\n\nint http_rule(void);\n\nint http_rule(void)\n{\n"
                          "    return rule_first() + CURLE_OK;\n}\n",
    "test/sim.d/mutants/TWO_IS_THREE.patch": "the second rule is the third\n\n--- src/core/second.c\n@@\n-    return 2;\n+    return 3;\n",
    "test/mutate.d/equivalent": "# Judged.\n\nsrc/core/second.c\n-return 2;\n+return 0;\nnobody calls it\n",
}

# gate, file, its text, a piece of what must be said
BAD = [
    ("banned", "src/core/second.c", "#include <stdio.h>\n\nint rule_second(void)\n{\n    char text[9];\n\n    return sprintf(text, \"x\");\n}\n", "sprintf()"),
    ("banned", "src/base/text.c", "int f(char *p)\n{\n    return atoi (p);\n}\n", "atoi()"),
    ("direction", "src/core/second.c", "#include \"onceward/forward/forward.h\"\n", "core must not know forward"),
    ("direction", "src/base/text.c", "#include \"core/first.h\"\n", "base must not know core"),
    ("direction", "include/onceward/forward/http.h", "#include \"onceward/inbox/inbox.h\"\n", "forward must not know inbox"),
    ("direction", "src/command/check.c", "#include <curl/curl.h>\n", "is for forward only"),
    ("direction", "src/command/check.c", "#include <getopt.h>\n", "rows of the command's table"),
    ("direction", "src/main.c", "#include \"onceward/core/rule.h\"\n", "main must not know core"),
    ("direction", "src/strange/new.c", "int x;\n", "no folder of the table"),
    ("core", "src/core/second.c", "#include <sys/socket.h>\n", "<sys/socket.h>"),
    ("core", "include/onceward/core/rule.h", "#include \"onceward/base/clock.h\"\n", "clock.h"),
    ("core", "src/core/second.c", "#include <time.h>\n\nlong rule_second(void)\n{\n    return time(0);\n}\n", "time()"),
    ("circles", "src/core/second.c", "#include \"onceward/core/rule.h\"\n\nint rule_second(void)\n{\n    return rule_first();\n}\n", "first.c → second.c"),
    ("format", "src/core/second.c", "int rule_second (void) {\n  return 2; }\n", "not formatted"),
    ("headers", "include/onceward/core/rule.h", "#pragma once\n\nint rule_first(size_t n);\n", "size_t"),
    ("prose", "src/core/second.c", "/* Whoever calls this. */\n", "begins with \"whoever\""),
    ("prose", "src/core/second.c", "/* Its wait has ended. */\n", "begins with \"its\""),
    ("prose", "src/core/second.c", "/* " + "word " * 24 + "*/\n", "a line of a comment has 125"),
    ("prose", "sql/functions/a.sql", "-- " + "word " * 24 + "\nSELECT 1;\n", "a line of a comment has 123"),
    ("prose", "src/core/second.c", "int x; /* Rules of design section 5. */\n", "not in the repository"),
    ("prose", "sql/functions/a.sql", "-- It waits.\nSELECT 1;\n", "begins with \"it\""),
    ("prose", "README.md", "Onceward tries the message anew.\n", "\"anew\" is a banned"),
    ("prose", "README.md", "word " * 36 + "\n", "a line of 180"),
    ("prose", "README.md", "| a | b |\n|---|---|\n" + ("| " + "word " * 13) * 2 + "|\n", "a line of 135"),
    ("prose", "README.md", "```sh\n" + "word " * 36 + "\n```\n", "a line of 180"),
    ("prose", "README.md", ("word " * 18 + "\n") * 2 + "end.\n", "a sentence of 37 words"),
    ("prose", "README.md", "A line of some words.\n" * 6, "a paragraph of 6 lines"),
    ("prose", "README.md", "| a |\n|---|\n| " + "word " * 21 + "|\n", "a cell of 21 words"),
    ("prose", "README.md", ("word " * 14 + "\n" + "word " * 11 + "and end.\n\n") * 2, "sentences of 27 words on average"),
    ("mutants", "src/core/second.c", "int rule_second(void)\n{\n    return 4;\n}\n", "its lines do not stand in src/core/second.c"),
    ("mutants", "src/core/second.c", "int a(void)\n{\n    return 2;\n}\nint b(void)\n{\n    return 2;\n}\n", "2 times"),
    ("mutants", "test/sim.d/mutants/B.patch", "b\n\n--- include/onceward/core/rule.h\n@@\n-#pragma once\n", "is no src/….c"),
    ("equivalent", "src/core/second.c", "int rule_second(void)\n{\n    return 4;\n}\n", "no such mutant any more: return 2;"),
    ("phantoms", "src/core/second.c", "/* Called by rule_third(). */\n", "nothing is called rule_third"),
    ("phantoms", "src/core/second.c", "/* Called by vanished(). */\n", "no function is called vanished"),
    ("phantoms", "src/core/third.c", "void rule_last(int n)\n{\n    (void)n;\n}\n", "the body of rule_last() is empty"),
    ("tidy", "src/core/second.c", "double rule_half(int n);\n\ndouble rule_half(int n)\n{\n    return n / 2;\n}\n", "integer division"),
]


def make(folder, files, root):
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in files.items():
        os.makedirs(os.path.join(folder, os.path.dirname(path)), exist_ok=True)
        with open(os.path.join(folder, path), "w") as f:
            f.write(text)
    for name in (".clang-format", ".clang-tidy"):
        shutil.copy(os.path.join(root, name), folder)


def run(gates, root, folder):
    """Answers 1 when a gate let something pass that it must not, or the other way round."""
    n_wrong = n_right = n_skipped = 0
    folder = os.path.join(os.path.realpath(folder), "tree")
    cases = [(name, None, None, None) for name in gates.GATES] + BAD
    for name, path, text, part in cases:
        make(folder, {**GOOD, **({path: text} if path else {})}, root)
        try:
            said = gates.GATES[name](folder)
        except gates.Skipped:
            n_skipped += 1
            continue
        good = any(part in line for line in said) if path else not said
        n_right += good
        n_wrong += not good
        if not good:
            print(f"  {name}: {f'did not refuse {path} with {part}' if path else 'refused a good tree'}: {said}", flush=True)
    missing = set(gates.GATES) - {name for name, *_ in BAD}
    if missing:
        n_wrong += 1
        print(f"  never seen to fail: {sorted(missing)}", flush=True)
    print(f"  gates, shown {len(cases)} trees: {n_right} right, {n_wrong} wrong, {n_skipped} not looked at", flush=True)
    return 1 if n_wrong else 0
