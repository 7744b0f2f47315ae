# lab-addition: hvm
# Guests of the Xen Test Framework, with their own files unchanged: each ends under xy as it does under xl.
#   cargo xtask lab run --with TESTS.tar xtf TESTS.tar [-x PATTERN]... [-s SECONDS] [PATTERN...]
# TESTS.tar holds built tests at the paths that their *.cfg files name. Patterns are of the shell and match the test's
# name (test-pv64-example); -x leaves out what ends Xen itself.
. /lab/lib.sh
modprobe tun

archive=/root/$1
shift
limit=20
left_out=""
while getopts x:s: option; do
    case $option in
    x) left_out="$left_out $OPTARG" ;;
    s) limit=$OPTARG ;;
    *) fail "unknown option" ;;
    esac
done
shift $((OPTIND - 1))
[ $# != 0 ] || set -- '*'
set -f

matches() { # NAME PATTERN...
    wanted=$1
    shift
    for pattern in "$@"; do
        # shellcheck disable=SC2254 # it is a pattern
        case $wanted in $pattern) return 0 ;; esac
    done
    return 1
}

mkdir /tmp/guests
tar -tf "$archive" | grep '\.cfg$' | sort >/tmp/guests/all
tar -xf "$archive" -C / || fail "$archive cannot be unpacked"

# The dead domain is kept until its console was read. (What is set here is no part of the guest's file.)
keep='on_poweroff="preserve" on_reboot="preserve" on_crash="preserve" on_watchdog="preserve"'

state() { xl list "$1" 2>/dev/null | awk 'NR == 2 { print $5 }'; }
result() { sed -n 's/\r$//; s/^Test result: //p' "$1" 2>/dev/null | tail -n 1; }

# ended NAME: how a guest stopped running, or that it did not.
ended() {
    ended_by=$(($(date +%s) + limit))
    while [ "$(date +%s)" -lt $ended_by ]; do
        case $(state "$1") in
        *c*) echo "crashed"; return ;;
        *s*) echo "stopped"; return ;;
        "") echo "gone"; return ;;
        esac
        sleep 0.3
    done
    echo "runs on"
}

# run TOOL FILE NAME: how the guest ended, in one line; what it printed is in /results/TOOL/NAME.
run() {
    log=$(console_log "$3")
    rm -f "$log"
    # shellcheck disable=SC2086 # settings are parted by spaces
    if ! "$1" create -q "$2" $keep >"/results/$1/$3.create" 2>&1 </dev/null; then
        echo "refused"
        return
    fi
    end=$(ended "$3")
    [ "$end" = "runs on" ] || wait_for "[ -n \"\$(result '$log')\" ]" 2
    xl destroy "$3"
    wait_for "! xl domid $3" 10 || end="$end, stays"
    cp "$log" "/results/$1/$3" 2>/dev/null
    found=$(result "$log")
    echo "${found:-no result}, $end"
}

mkdir -p /results/xl /results/xy
start_xylemd
alike=0
otherwise=0
while read -r file; do
    name=$(basename "$file" .cfg)
    matches "$name" "$@" || continue
    # shellcheck disable=SC2086 # patterns are parted by spaces
    ! matches "$name" $left_out || continue
    file=/${file#./}
    under_xl=$(run xl "$file" "$name")
    under_xy=$(run xy "$file" "$name")
    if [ "$under_xl" = "$under_xy" ]; then
        alike=$((alike + 1))
        verdict=alike
    else
        otherwise=$((otherwise + 1))
        verdict=OTHERWISE
    fi
    printf '%-44s %-20s %-20s %s\n' "$name" "$under_xl" "$under_xy" "$verdict"
    [ "$under_xy" != refused ] || [ "$under_xl" = refused ] || sed 's/^/    /' "/results/xy/$name.create"
done <"/tmp/guests/all"
xl dmesg >/results/xen.log
echo "$((alike + otherwise)) guests: $alike ended alike, $otherwise otherwise"
[ "$alike" != 0 ] && [ "$otherwise" = 0 ]
