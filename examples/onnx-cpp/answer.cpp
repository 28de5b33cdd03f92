// An exported model in C++: numbers of one input on standard input, the answer and its uncertainty out.
//
//   qbayes export mcd.qbayes mcd.onnx --target onnx --outputs mean,entropy,mutual_information
//   make ORT_INCLUDE=… ORT_LIB=… && ./answer mcd.onnx < row.txt
//
// The C API and those of C#, Java, Rust and JavaScript have the same calls under other names.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

// The shape of the input "x": one row, and the axes of the model behind it.
static std::vector<int64_t> shape_of_one_row(const Ort::Session &session) {
    std::vector<int64_t> shape = session.GetInputTypeInfo(0).GetTensorTypeAndShapeInfo().GetShape();
    shape[0] = 1; // any number of rows may come: here it is one
    return shape;
}

// All numbers of standard input; what is no finite number is refused.
static std::vector<float> read_row() {
    std::vector<float> row;
    std::string word;
    while (std::cin >> word) {
        size_t read = 0;
        float number = 0;
        try {
            number = std::stof(word, &read);
        } catch (const std::exception &) {
            read = 0;
        }
        if (read != word.size() || !std::isfinite(number)) {
            throw std::runtime_error("the input must be finite numbers: got '" + word + "'");
        }
        row.push_back(number);
    }
    return row;
}

static int answer(const char *path) {
    Ort::Env environment(ORT_LOGGING_LEVEL_ERROR, "answer");
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    Ort::Session session(environment, path, options); // throws where the file is missing or damaged

    const std::vector<int64_t> shape = shape_of_one_row(session);
    int64_t count = 1;
    for (int64_t axis : shape) count *= axis;
    std::vector<float> row = read_row();
    if (static_cast<int64_t>(row.size()) != count) {
        throw std::runtime_error("the input must have " + std::to_string(count) + " numbers: got " +
                                 std::to_string(row.size()));
    }

    Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    Ort::Value x = Ort::Value::CreateTensor<float>(memory, row.data(), row.size(), shape.data(), shape.size());
    const char *inputs[] = {"x"};
    const char *outputs[] = {"mean", "entropy", "mutual_information"};
    std::vector<Ort::Value> found = session.Run(Ort::RunOptions{nullptr}, inputs, &x, 1, outputs, 3);

    const float *mean = found[0].GetTensorData<float>();
    const size_t answers = found[0].GetTensorTypeAndShapeInfo().GetElementCount();
    const size_t best = static_cast<size_t>(std::max_element(mean, mean + answers) - mean);
    std::printf("answer %zu of %zu: %.6f\n", best, answers, static_cast<double>(mean[best]));
    std::printf("entropy %.6f nats, of the model %.6f\n", static_cast<double>(*found[1].GetTensorData<float>()),
                static_cast<double>(*found[2].GetTensorData<float>()));
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: answer MODEL.onnx < numbers\n");
        return 2;
    }
    try {
        return answer(argv[1]);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 2;
    }
}
