# What xl's own moves of a Linux guest take between two hosts, to compare with: `lab pair --store c --vmlinux xl-migrate`.
# PVH live, and PV by a file, since Debian's Xen has no log-dirty mode for PV guests. Words: how often there and back (3), kinds.
. /lab/lib.sh
. /lab/lib-pair.sh
rounds=${1:-3}
[ $# = 0 ] || shift
serve_nbd pvh pv
check "the first disk is on both" connect_nbd pvh 0
check "and the second" connect_nbd pv 1
link observe 10.0.0.5

# move NAME FROM: live, by xl over ssh.
move() { on "$2" "xl migrate $1 $(other "$2")" >>/results/xl.log 2>&1; }

# carry NAME FROM: stopped, as a file over ssh.
carry() {
    on "$2" "xl save $1 /run/$1.save && ssh $(other "$2") 'cat >/run/$1.save && xl restore /run/$1.save && rm /run/$1.save' </run/$1.save && rm /run/$1.save" \
        >>/results/xl.log 2>&1
}

# moves WHAT NAME COMMAND: there and back, so many times.
moves() {
    host=a
    for round in $(seq "$rounds"); do
        for _ in there back; do
            move_begins "$2"
            check "$1 $round from $host" "$3" "$2" "$host" || return 1
            move_ended "$1" round="$round" from="$host"
            host=$(other "$host")
            check "it goes on" goes_on_at "$host" "$2" io tick
        done
    done
}

[ $# != 0 ] || set -- pvh pv
for kind in "$@"; do
    case $kind in
        pvh) number=0 what=xl-migrate command=move ;;
        pv) number=1 what=xl-save-restore command=carry ;;
    esac
    echo "== $kind"
    mover_cfg "$kind" "$kind" "phy:/dev/nbd$number,xvda,w"
    check "create" xl create -q "/tmp/$kind.cfg" || continue
    check "it is up" console_wait "$kind" 'XYLEM-GUEST: mem=1' 600 || continue
    check "it runs" goes_on_at a "$kind" io mem tick
    move_begins "$kind"
    sleep 20
    move_ended rest
    moves "$what" "$kind" "$command"
    xl destroy "$kind" 2>/dev/null || on_b "xl destroy $kind"
done
on_both 'xl list'
