# `xy store` prints and exits as xenstore-utils do, on the store of a host with guests.
. /lab/lib.sh

# same COMMAND ARGS...: both tools say the same of the store as it is.
same() {
    theirs=$(xenstore-"$@" 2>/dev/null; echo "status $?")
    ours=$(xy store "$@" 2>/dev/null; echo "status $?")
    check "$*" test "$theirs" = "$ours"
}

# alike COMMAND ARGS...: both make the same of /theirs and /ours, which stand for TOP.
alike() {
    command=$1
    shift
    xenstore-$command $(echo "$*" | sed 's,TOP,/theirs,g') >/dev/null 2>&1
    theirs=$?
    xy store $command $(echo "$*" | sed 's,TOP,/ours,g') >/dev/null 2>&1
    ours=$?
    check "$command $*" test "$theirs" = "$ours"
    check "its tree" test "$(xenstore-ls -p /theirs 2>&1)" = "$(xenstore-ls -p /ours 2>&1 | sed 's,/ours,/theirs,')"
}

start_xylemd
unikernel_cfg one "type = 'pv'" "vif = ['bridge=xenbr0']"
check "create one" xy create -q /tmp/one.cfg
check "one has its network" console_wait one 'vif 0 connected' 30

for options in "" -p -f -fp; do
    same ls $options
    same ls $options /local/domain
    same ls $options /nowhere
done
for path in / /local/domain /local/domain/0 /nowhere; do
    same list $path
    same exists $path
    same read $path
done
same list -p /local/domain/0 /vm
same read -p /local/domain/0/name /tool/xenstored
same read name
same exists /local /nowhere

alike write TOP/a/b 1 TOP/a/c 'two\x20words\n'
alike write -R TOP/a/raw 'no\nnewline'
alike chmod -r TOP/a b0 r1
alike chmod -u TOP/a/b n1 w0
alike chmod TOP/nowhere n0
alike rm -t TOP/a/b
alike rm TOP/no/where
alike rm -t TOP/a
