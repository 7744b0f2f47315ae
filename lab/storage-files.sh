# What the storage suites on raw files of an ext4 file system in dom0 have in common: . /lab/storage-files.sh
file_system /srv
mkdir /srv/vdis

put() { dd if=/guest/disk.img "of=/srv/vdis/${1#*:}.raw" conv=notrunc 2>/dev/null; }
text() { mounted_text "/srv/vdis/${1#*:}.raw" loop; }
fill_up() { dd if=/dev/urandom of=/srv/filler bs=64k 2>/dev/null; }
free_up() { rm /srv/filler; }
can() {
    case $1 in
        # ext4 cannot share blocks; a folder has no server, and the kernel serves it.
        snapshot_while_written | lose | kill_driver | outlive_*) return 1 ;;
    esac
}
