# Two hosts: commands on the other one, a link that is cut, slowed and restored, a shared disk, and a power cut.
. /lab/lib.sh
. /lab/lib-pair.sh

# milliseconds COMMAND...: how long it takes.
milliseconds() {
    begun=$(now)
    "$@" >/dev/null 2>&1 || return 1
    awk -v begun="$begun" '{ print int(($1 - begun) * 1000) }' /proc/uptime
}

check "the other host takes commands" [ "$(on_b hostname)" = b ]
check "it is a Xen host" on_b xl info
check "the same over the link" [ "$(ssh b hostname)" = b ]
check "and back" [ "$(on_b ssh a hostname)" = a ]
on_b exit 7
check "the status of a command comes back" [ $? = 7 ]
echo "a connection takes $(milliseconds ssh b true) ms, a command $(milliseconds on_b true) ms"
begun=$(now)
dd if=/dev/zero bs=64k count=256 2>/dev/null | ssh b 'cat >/dev/null'
echo "16 MiB over the link: $(seconds_since "$begun") s"

echo "== the link"
answers() { ping -c 3 -W 1 10.0.0.2; }
check "it is there" answers
link cut
check "cut" sh -c '! ping -c 3 -W 1 10.0.0.2'
check "the other host still takes commands" on_b true
link restore
check "restored" answers
link delay 200
round_trip=$(ping -c 3 10.0.0.2 | sed -n 's|^round-trip.* = \([0-9]*\).*|\1|p')
check "delayed by 200 ms each way: $round_trip ms" [ "$round_trip" -ge 400 ]
link restore
link cut from b
check "cut in one direction" sh -c '! ping -c 3 -W 1 10.0.0.2'
link restore
link throttle 500
begun=$(now)
dd if=/dev/zero bs=64k count=32 2>/dev/null | ssh b 'cat >/dev/null'
echo "2 MiB at 500 kB/s: $(seconds_since "$begun") s"
check "throttled" [ "$(seconds_since "$begun" | cut -d . -f 1)" -ge 4 ]
link restore
link loss 50
lost=$(ping -c 20 -W 1 -i 0.2 10.0.0.2 | awk -F , '/packet loss/ { print int($3) }')
check "lossy: $lost %" [ "$lost" -gt 30 ]
link restore
check "what makes no sense is refused" eval '! link saw && ! power_cut a'

echo "== a shared disk"
serve_nbd one
check "connected on both" connect_nbd one 0
on_b "echo 'written on b' | dd of=/dev/nbd0 bs=512 seek=4096 conv=sync oflag=direct 2>/dev/null"
check "one sees what the other writes" [ "$(dd if=/dev/nbd0 bs=512 skip=4096 count=1 iflag=direct 2>/dev/null | tr -d '\0' | head -1)" = "written on b" ]

echo "== the power"
on_b 'echo kept >/var/lib/xylem/mark && sync'
check "cut" power_cut b
check "it is gone" sh -c '! ping -c 3 -W 1 10.0.1.2'
check "on" power_on b
check "its disk is what it was" [ "$(on_b cat /var/lib/xylem/mark)" = kept ]
check "the link is there" answers
