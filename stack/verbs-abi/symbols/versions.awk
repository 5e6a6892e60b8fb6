# Makes of the file `releases` what the linker takes: -v of=map LIBRARY's version script, or -v of=jumps an assembler file of
# the symbols that another function answers. -v family=IBVERBS or RDMACM.
/^#/ || NF == 0 { next }
!($2 in nodes) { nodes[$2] = ++count; order[count] = $2 }
{ lines++; name[lines] = $1; version[lines] = $2; answer[lines] = $4; newest[$1] = $2 }
$4 != "" { jumps[$2] = 1 }

function jump(symbol, of_version, to,    label) {
    label = symbol "." of_version
    printf ".globl %s\n", label
    if (to == "object") printf ".bss\n.balign 8\n.type %s, %%object\n.size %s, 8\n%s: .zero 8\n", label, label, label
    else printf ".text\n.type %s, %%function\n%s: JUMP %s\n", label, label, to
    printf ".symver %s, %s%s%s\n", label, symbol, newest[symbol] == of_version ? "@@" : "@", of_version
}

END {
    if (of == "jumps") {
        print "#ifdef __aarch64__\n#define JUMP b\n#else\n#define JUMP jmp\n#endif"
        for (line = 1; line <= lines; line++) if (answer[line] != "") jump(name[line], version[line], answer[line])
        print ".section .note.GNU-stack, \"\", %progbits"
        exit
    }
    for (node = 1; node <= count; node++) {
        if (order[node] !~ "^" family "_") continue
        printf "%s {\n", order[node]
        listed = 0
        for (line = 1; line <= lines; line++) {
            if (version[line] != order[node] || answer[line] != "") continue
            if (!listed++) print "    global:"
            printf "        %s;\n", name[line]
        }
        # All else stays inside. Said in a version without jumps, which the linker would hide.
        if (!hidden && !(order[node] in jumps)) { print "    local:\n        *;"; hidden = 1 }
        is_private = order[node] ~ /PRIVATE/
        printf "}%s;\n", parent != "" && !is_private ? " " parent : ""
        if (!is_private) parent = order[node]
    }
}
