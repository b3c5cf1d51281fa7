# Files as C arrays: cmake -DOUT=page_files.c -DFILES="a;b" -P embed.cmake
# For each file NAME.EXT: const unsigned char neap_page_NAME_EXT[] with its bytes, and neap_page_NAME_EXT_bytes.
set(text "/* Made by cmake/embed.cmake from the files of the page. */\n#include \"page_files.h\"\n\n")
foreach(file IN LISTS FILES)
    get_filename_component(name ${file} NAME)
    string(MAKE_C_IDENTIFIER ${name} name)
    file(READ ${file} hex HEX)
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
    string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
    string(LENGTH "${hex}" n)
    math(EXPR n "${n} / 2")
    string(APPEND text "const unsigned char neap_page_${name}[] = {\n${bytes}\n};\nconst size_t neap_page_${name}_bytes = ${n};\n")
endforeach()
file(WRITE ${OUT} "${text}")
