# Tests: each one is a line. Included by CMakeLists.txt when NEAP_TESTS is on; paths are the project's.
enable_testing()
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(neap_test_data ${PROJECT_SOURCE_DIR}/tests/data)
set(neap_test_environment NEAP_TEST_DATA=${neap_test_data} NEAP_SOURCE_DIR=${PROJECT_SOURCE_DIR}
    NEAP_BUILD_DIR=${PROJECT_BINARY_DIR} NEAP_PROGRAM=${PROJECT_BINARY_DIR}/neap CC=${CMAKE_C_COMPILER}
    NEAP_SANITIZE=${NEAP_SANITIZE} PYTHONDONTWRITEBYTECODE=1
    ASAN_OPTIONS=allocator_may_return_null=1:strict_string_checks=1
    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1)
# Seconds in a quiet machine's fast build, minutes in a slow one on a busy machine: the limit is for what hangs. No
# PROCESSORS: two teams share two cores well, see runtime/team.c.
function(neap_add_test name)
    add_test(NAME ${name} COMMAND ${ARGN})
    set_tests_properties(${name} PROPERTIES TIMEOUT 1200 SKIP_RETURN_CODE 77
        ENVIRONMENT "${neap_test_environment}")
endfunction()
# A test program that may look inside the library: neap_test_program(name sources...)
function(neap_test_program name)
    add_executable(${name} ${ARGN})
    target_include_directories(${name} PRIVATE src tests)
    target_compile_definitions(${name} PRIVATE NEAP_TEST_DATA="${neap_test_data}")
    target_link_libraries(${name} PRIVATE neap_static PkgConfig::CMOCKA)
endfunction()
# neap_unit_test(json): tests/unit/test_json.c (+ more sources); neap_golden_test: the same in tests/golden
function(neap_unit_test name)
    neap_test_program(test_${name} tests/unit/test_${name}.c ${ARGN})
    neap_add_test(unit.${name} test_${name})
endfunction()
function(neap_golden_test name)
    neap_test_program(test_${name} tests/golden/test_${name}.c ${ARGN})
    neap_add_test(golden.${name} test_${name})
endfunction()
# neap_fuzz_test(json): tests/fuzz/fuzz_json.c (LLVMFuzzerTestOneInput) over tests/fuzz/corpus/json
function(neap_fuzz_test name)
    if(NEAP_FUZZ)
        neap_test_program(fuzz_${name} tests/fuzz/fuzz_${name}.c ${ARGN})
        target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    else()
        neap_test_program(fuzz_${name} tests/fuzz/fuzz_${name}.c tests/fuzz/replay.c ${ARGN})
        neap_add_test(fuzz.${name} fuzz_${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name})
    endif()
endfunction()
# neap_script_test(cli.run tests/cli/run.py): a python3 or sh script; it gets the program's path as argument 1
function(neap_script_test name script)
    set(runner ${Python3_EXECUTABLE})
    if(script MATCHES "\\.sh$")
        set(runner sh)
    endif()
    neap_add_test(${name} ${runner} ${PROJECT_SOURCE_DIR}/${script} ${PROJECT_BINARY_DIR}/neap ${ARGN})
endfunction()

# the same for several: neap_tests(unit json checkpoint)
function(neap_tests kind)
    foreach(name IN LISTS ARGN)
        cmake_language(CALL neap_${kind}_test ${name})
    endforeach()
endfunction()

# unit
neap_tests(unit attend caches chat chat_parse checkpoint codec colour config cores igemm index json kda_chunk
    kernel_cases load
    layout matrix packed pages plan prefix prefix_disk quantize moe_split residual sampler store team text tokenizer
    tuning units weights work)
neap_tests(golden admission alloc cases cases_more cases_prefix cases_quant equal greedy long plan_modes poison
    prefix_bits serving tunings)
neap_unit_test(schedule tests/unit/fake_forward.c)
neap_unit_test(sha256 apps/server/sha256.c)
neap_unit_test(engine tests/unit/fake_forward.c)
neap_unit_test(answer tests/unit/fake_forward.c)
neap_unit_test(grammar)
target_link_libraries(test_grammar PRIVATE PkgConfig::JANSSON)
neap_unit_test(http_parse apps/server/http_parse.c)
# kcheck
neap_test_program(kcheck tests/kcheck/kcheck_main.c $<TARGET_OBJECTS:kcheck_objects>)
neap_add_test(kcheck kcheck)
# fuzz
neap_tests(fuzz chat config encode grammar header index json packed parse prefix_file tokenizer)
neap_fuzz_test(http apps/server/http_parse.c)
set(params_sources error.c json_strict.c messages_in.c params.c params_chat.c params_read.c params_table.c)
list(TRANSFORM params_sources PREPEND apps/server/)
neap_fuzz_test(params apps/buffer.c apps/json_out.c ${params_sources})
target_link_libraries(fuzz_params PRIVATE PkgConfig::JANSSON)
neap_test_program(header_oracle tests/fuzz/header_oracle.c)
neap_test_program(http_oracle tests/fuzz/http_oracle.c apps/server/http_parse.c)
neap_test_program(text_oracle tests/fuzz/text_oracle.c)
neap_test_program(grammar_oracle tests/fuzz/grammar_oracle.c)
neap_script_test(fuzz.checkpoint_oracle tests/cli/checkpoint_oracle.py)
# the HTTP layer alone
list(TRANSFORM http_sources PREPEND apps/server/)
neap_test_program(http_echo tests/cli/http_echo.c ${http_sources} apps/buffer.c apps/chance.c
    apps/report.c apps/terminal.c)
target_link_libraries(http_echo PRIVATE PkgConfig::EVENT)
if(EVENT_TLS_FOUND)
    target_link_libraries(http_echo PRIVATE PkgConfig::EVENT_TLS)
    target_compile_definitions(http_echo PRIVATE NEAP_TLS=1)
endif()
# the program with a model that says what a test tells it to
add_executable(neap_scripted tests/cli/scripted.c $<TARGET_OBJECTS:neap> $<TARGET_OBJECTS:kcheck_objects>)
target_link_libraries(neap_scripted PRIVATE neap_static PkgConfig::EDIT PkgConfig::EVENT PkgConfig::JANSSON)
if(EVENT_TLS_FOUND)
    target_link_libraries(neap_scripted PRIVATE PkgConfig::EVENT_TLS)
endif()
target_link_options(neap_scripted PRIVATE -pie -Wl,--wrap=neap_submit -Wl,--wrap=neap_poll)
# scripts that run the program
neap_script_test(golden.verify tests/golden/run_all.py)
foreach(script accuracy_sample act_types bench bench_formats bundled_model cache_command cache_types chat_oracle
        chat_session compile_cache doctor eval_retrieval floors grammar_oracle http_oracle http_raw info_plan
        load_memory
        malformed package perplexity plan_modes quantize run_streams serve_cancel serve_cases serve_chat serve_config
        serve_drain serve_guard serve_hostile serve_landing serve_metrics
        serve_messages serve_openai serve_openapi serve_page serve_params serve_prefix serve_scripts serve_slow
        serve_soak serve_speed serve_stall serve_streams serve_syscalls signals_terminal tokenize_text
        tokenizer_oracle tool_score
        tune usage verify_golden)
    neap_script_test(cli.${script} tests/cli/${script}.py)
    if(script MATCHES "^(serve|http|tool)_") # one server at a time
        set_tests_properties(cli.${script} PROPERTIES RESOURCE_LOCK server)
    endif()
endforeach()
# house rules
foreach(check layers symbols headers limits calls names listed documents format)
    neap_script_test(tidy.${check} tests/tidy/tidy.py ${check})
endforeach()
