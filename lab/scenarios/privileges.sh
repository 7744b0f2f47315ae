# Who holds what on a host that runs VMs: the store and the kernels' parser are not root and hold next to nothing,
# xylemd holds Xen's devices and no other process of ours does; a hostile kernel fails its own create alone.
. /lab/lib.sh

# The store as it is meant to be run. Its clients' connections end with the one of the boot.
kill -9 "$(pidof xylem-xenstored)"
xylem-xenstored --user 65534:65534 >/results/xylem-xenstored.log 2>&1 </dev/null &
check "the store is served again" wait_for '[ -S /run/xenstored/socket ] && xenstore-read -s /local/domain/0/name' 60
killall xenconsoled
wait_for '! pidof xenconsoled' 30
xenconsoled --log=all --log-dir=/var/log/xen/console --pid-file=/run/xenconsoled.pid
start_xylemd

# parser: the process that waits for the next kernel.
parser() {
    for lab_stat in /proc/[0-9]*/stat; do
        awk -v parent="$xylemd_pid" '$4 == parent && $3 != "Z" { print $1 }' "$lab_stat" 2>/dev/null
    done | head -n 1
}
# holds PID: what its descriptors are, each once.
holds() {
    for lab_fd in /proc/"$1"/fd/*; do readlink "$lab_fd"; done | sed 's/:\[.*\]//' | sort | uniq -c
}
# status_has PID LINE
status_has() { grep -q "^$2\$" "/proc/$1/status"; }
# report NAME PID: the table that docs/host.md speaks of.
report() {
    echo "## $1"
    grep -E '^(Uid|Cap(Prm|Eff|Bnd)|NoNewPrivs|Seccomp):' "/proc/$2/status" | tr '\t' ' '
    grep -E '^Max (cpu time|file size|address space|open files)' "/proc/$2/limits"
    holds "$2"
}
# confined PID NAME
confined() {
    check "$2 is not root" status_has "$1" 'Uid:.65534.65534.65534.65534'
    check "$2 has no capability" status_has "$1" 'CapEff:.0000000000000000'
    check "$2 can get none" status_has "$1" 'CapBnd:.0000000000000000'
    check "$2 gains nothing by programs" status_has "$1" 'NoNewPrivs:.1'
    check "$2 has a filter of system calls" status_has "$1" 'Seccomp:.2'
}

cp /guest/disk.img /tmp/disk1.img
unikernel_cfg one "vif = ['bridge=xenbr0']" "disk = ['/tmp/disk1.img,raw,xvda,r']"
check "a VM runs" xy create -q /tmp/one.cfg
check "it has its disk" console_wait one 'vbd 51712' 60

store=$(pidof xylem-xenstored)
check "a parser waits for the next kernel" wait_for '[ -n "$(parser)" ] && status_has "$(parser)" "Seccomp:.2"' 60
parser=$(parser)
{
    report xylemd "$xylemd_pid"
    report "xylemd's parser of kernels" "$parser"
    report xylem-xenstored "$store"
} | tee /results/privileges.txt

confined "$store" "the store"
confined "$parser" "the parser"
check "the parser holds a socket and nothing else" \
    [ "$(holds "$parser" | awk '{ print $2 }' | tr '\n' ' ')" = "/dev/null socket " ]
check "its memory is bounded" grep -q '^Max address space *[0-9]' "/proc/$parser/limits"
check "its CPU time is bounded" grep -q '^Max cpu time *[0-9]' "/proc/$parser/limits"
check "xylemd holds the hypercalls" sh -c "ls -l /proc/$xylemd_pid/fd | grep -q /dev/xen/privcmd"
check "xylemd holds no event channel and no grant" \
    sh -c "! ls -l /proc/$xylemd_pid/fd | grep -E '/dev/xen/(evtchn|gntdev|gntalloc|xenbus)'"
for fd in /proc/[0-9]*/fd/*; do
    case $(readlink "$fd") in
        /dev/xen/privcmd | /dev/xen/hypercall) echo "$fd" | cut -d / -f 3 ;;
    esac
done | sort -u | while read -r pid; do cat "/proc/$pid/comm"; done | sort >/results/privcmd-holders.txt
check "of ours, xylemd and the store only" \
    [ "$(grep -cvE '^(xylemd|xylem-xenstored|xenconsoled)$' /results/privcmd-holders.txt)" = 0 ]

# Hostile and damaged kernels: each fails its own create, in words that name the file.
host_state >/results/state.before
# refused NAME WORDS: a create of /tmp/NAME fails, and says so.
refused() {
    unikernel_cfg "bad-$1" "kernel = '/tmp/$1'"
    check "$1 is refused" sh -c "! xy create -q /tmp/bad-$1.cfg 2>/tmp/bad-$1.err"
    sed "s/^/    /" "/tmp/bad-$1.err"
    check "$1 is named" grep -q "/tmp/$1: .*$2" "/tmp/bad-$1.err"
}
head -c 3000000 /guest/vmlinuz >/tmp/cut-off
refused cut-off 'cut off'
head -c 100000 /dev/urandom >/tmp/noise
refused noise 'not an ELF or bzImage'
: >/tmp/empty
refused empty 'empty file'
# A gzip file that says it unpacks to 400 MiB and whose data is not deflate's.
{ printf '\037\213\010\000\000\000\000\000\000\000'; head -c 5000 /dev/urandom; printf '\000\000\000\031'; } >/tmp/bomb
refused bomb .
# The parser that waits is killed: the next kernel gets a new one.
unikernel_cfg after "vif = ['bridge=xenbr0']"
kill -9 "$(parser)"
check "no parser is left" wait_for '[ -z "$(parser)" ]' 60
check "without a parser at hand a kernel is parsed all the same" sh -c "cp /guest/unikernel /tmp/copy && sed -i s,/guest/unikernel,/tmp/copy, /tmp/after.cfg && xy create -q /tmp/after.cfg"
check "and runs" console_wait after 'vif 0 connected' 60
check "it goes" xy destroy after
check "dom0 is as before" wait_for 'same_state /results/state.before' 60
check "xylemd is the same" kill -0 "$xylemd_pid"
check "the first VM never noticed" xy shutdown -w one
