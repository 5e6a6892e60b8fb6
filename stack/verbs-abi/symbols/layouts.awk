# Makes of the file `layouts` a program of C that compiles if the headers have it so: -v release=44, 56 or 65.
BEGIN { print "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>" }
/^#/ || index("," $3 ",", "," release ",") == 0 { next }
{
    dot = index($1, ".")
    name = dot ? substr($1, 1, dot - 1) : $1
    type = (name == "ibv_gid" ? "union " : "struct ") name
    have = dot ? "offsetof(" type ", " substr($1, dot + 1) ")" : "sizeof(" type ")"
    if (dot && name == "verbs_context") have = "offsetof(" type ", context) - " have
    printf "_Static_assert(%s == %s, \"%s\");\n", have, $2, $1
}
