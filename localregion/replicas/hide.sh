#!/bin/sh
# hide.sh TREE LIST: moves what LIST (absent.txt of an *_ami folder) names out of the tree's PATH, to the folder in which the image keeps
# what works under another system's name. Links point to where they pointed.
set -eu
tree=$1
hidden=/usr/libexec/gpu-ami/debian
mkdir -p "$tree$hidden"
sed 's/#.*//' "$2" | while read -r _ names; do
    for name in $names; do
        case $name in
            */*) places=$name ;;
            *) places="usr/bin/$name usr/sbin/$name" ;;
        esac
        for place in $places; do
            [ -e "$tree/$place" ] || [ -L "$tree/$place" ] || continue
            if [ -L "$tree/$place" ]; then
                target=$(readlink "$tree/$place")
                case $target in /*) ;; *) target=/$(dirname "$place")/$target ;; esac
                ln -sfn "$target" "$tree$hidden/$(basename "$place")"
                rm "$tree/$place"
            else
                mv "$tree/$place" "$tree$hidden/"
            fi
        done
    done
done
