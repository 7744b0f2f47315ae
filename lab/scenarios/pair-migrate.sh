# A Linux guest moves there and back, and checks its memory, its disk and its network on the way. Words:
#   moves=20          how often it moves
#   kind=pvh|pv       live, or with the longer stop of a guest that cannot be read while it runs
#   a=xy|xl b=xy|xl   the toolstack of each host, also of different ones; xl's host has Xen's own store: `--store-a c`
#   by=ssh|tls|both   how one xylemd reaches the other; both: by turns
#   then=xl           afterwards the same moves of another guest by this one on both hosts, in the same boot
#   memory=MIB mem=MIB   of the guest, and what it writes and verifies of it all the time
# For instance: lab pair --vmlinux --store-a c --timeout 3600 migrate a=xl moves=4
. /lab/lib.sh
. /lab/lib-pair.sh
moves=20 kind=pvh a=xy b=xy by=ssh then='' memory=128 mem=8
for word in "$@"; do
    case $word in
        moves=* | kind=* | a=* | b=* | by=* | then=* | memory=* | mem=*) eval "${word%%=*}='${word#*=}'" ;;
        *) fail "there is no '$word'" ;;
    esac
done
lab_memory=$memory lab_mem=$mem
case $kind in pv) pace=--non-live ;; *) pace= ;; esac
[ "$kind$a" != pvxl ] && { [ "$kind$b" != pvxl ] || [ "$moves" = 1 ]; } || fail "xl moves PV guests live only, which this Xen cannot: moves=1 to xl"

# toolstack HOST: xl or xy.
toolstack() { case $1 in a) echo "$a" ;; b) echo "$b" ;; esac; }

# state HOST: what a guest may leave behind there, but for the empty folders of the first that has come.
state() { on "$1" ". /lab/lib.sh && host_state | grep -v -E '^/xylem(/received)? = '"; }

# same_as_before HOST: after ten seconds at the latest, since devices go a moment later than their domain.
same_as_before() {
    wait_for "state $1 | cmp -s - /results/state.$1" 10
    state "$1" | diff "/results/state.$1" -
}

# move NAME FROM: by the verbs that both toolstacks have.
move() {
    case $by-$((number % 2)) in tls-? | both-0) tls=--tls ;; *) tls=--ssh ;; esac
    to=$(other "$2") sender=$(toolstack "$2") receiver=$(toolstack "$(other "$2")")
    case $sender-$receiver in
        xy-xy) on "$2" "xy migrate $tls $pace $1 $to" ;;
        # The command that receives is the other one's.
        xl-xl) on "$2" "xl migrate $1 $to" >>/results/xl.log 2>&1 ;;
        xy-xl) on "$2" "xy migrate $pace -s '' $1 'ssh $to xl migrate-receive'" ;;
        xl-xy) on "$2" "xl migrate -s '' $1 'ssh $to xy migrate-receive'" ;;
    esac
}

# address HOST: on the link.
address() { case $1 in a) echo 10.0.0.1 ;; b) echo 10.0.0.2 ;; esac; }

# listen HOST: what its xylemd needs for moves by TLS.
listen() { [ "$by" = ssh ] || echo "--peer-listen $(address "$1")"; }

# know HOST: its xylemd knows the other one.
know() { on "$1" "xy peer add $(other "$1") $(address "$(other "$1")") $(on "$(other "$1")" 'xy peer key 2>/dev/null')"; }

serve_nbd disk other
for host in a b; do
    [ "$(toolstack "$host")" = xy ] || continue
    check "xylemd on $host" on "$host" ". /lab/lib.sh && start_xylemd $(listen "$host")"
    check "block devices for NBD on $host" on "$host" 'modprobe nbd nbds_max=16'
    [ "$a$b" != xyxy ] || check "the SR on $host" on "$host" 'xy sr-create s nbd server=10.0.1.1'
done
[ "$by" = ssh ] || for host in a b; do check "$host knows the other" know "$host"; done
link observe 10.0.0.5

# steps NUMBER: those of a move, on both hosts, for /results.
steps() {
    for lab_host in a b; do
        [ "$(toolstack "$lab_host")" = xy ] || continue
        echo "move $1, on $lab_host:"
        on "$lab_host" 'xy trace mover'
    done >>/results/steps
}

# trial NAME EXPORT NUMBER: a guest moves by the toolstacks of a and b, and ends. Unless both are ours its disk is the block
# device of that number.
trial() {
    disk=s:$2,,xvda,w
    if [ "$a$b" != xyxy ]; then
        disk=format=raw,vdev=xvda,access=rw,target=/dev/nbd$3
        check "the disk is on both" connect_nbd "$2" "$3"
    fi
    state a >/results/state.a
    state b >/results/state.b
    mover_cfg "$1" "$kind" "$disk"
    check "create" "$a" create -q "/tmp/$1.cfg" || exit
    check "it is up" console_wait "$1" 'XYLEM-GUEST: mem=1' 600 || exit
    check "it runs" goes_on_at a "$1" io tick
    move_begins "$1"
    sleep 10
    move_ended rest
    host=a
    for number in $(seq "$moves"); do
        move_begins "$1"
        check "move $number, from $host by $(toolstack "$host")" move "$1" "$host" || exit
        move_ended move "kind=$kind by=$by number=$number from=$host from_to=$(toolstack "$host")-$(toolstack "$(other "$host")")"
        steps "$number"
        check "nothing is left on $host" same_as_before "$host"
        host=$(other "$host")
        check "it goes on, on $host" goes_on_at "$host" "$1" io tick
        check "with its address" ping -c 1 -W 5 10.0.0.5
    done
    check "its memory is verified to the end" goes_on_at "$host" "$1" mem
    check "shutdown" on "$host" "$(toolstack "$host") shutdown -w $1"
    for host in a b; do
        check "host $host is as before" same_as_before "$host"
    done
}

trial mover disk 0
if [ -n "$then" ]; then
    a=$then b=$then
    trial "after-$then" other 15
fi
