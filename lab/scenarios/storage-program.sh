# The storage suite on a driver out of process.
. /lab/lib.sh
. /lab/storage.sh
file_system /srv
cp /lab/storage-driver.sh /root/driver
chmod 755 /root/driver
start_xylemd

put() { dd if=/guest/disk.img "of=/srv/vdis/${1#*:}.img" conv=notrunc 2>/dev/null; }
text() { mounted_text "/srv/vdis/${1#*:}.img" loop; }
fill_up() { dd if=/dev/urandom of=/srv/filler bs=64k 2>/dev/null; }
free_up() { rm /srv/filler; }
# Not the guests' device, which is the kernel's, but the program that made it.
kill_driver() { kill -9 $(pids_of '[/]root/driver'); }
lose() { touch /tmp/driver.hang; }
find_again() { rm /tmp/driver.hang; }
# The guests' devices are the kernel's.
can() {
    case $1 in
        snapshot_while_written) return 1 ;;
    esac
}
# First it connects and scans: for a copy's name and for the original's.
kills_create=question:3
kills_snapshot=question:5
kills_clone=question:5
kills_resize=question:3
kills_destroy=question:3

storage_suite program program=/root/driver timeout=10 folder=/srv/vdis
